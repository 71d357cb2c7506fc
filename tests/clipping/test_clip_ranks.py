"""One search over all ranks: two gloo processes."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from clip_batches import Batch, by_hand, random_batch

from bapo_lightning.clipping import BAPOClip, FixedClip


def _part(name: str, rank: int) -> Batch:
    """What one rank holds of an update."""
    if name == "B070":
        return by_hand([1.0] * 4, [1.0, 1.0, 1.0, -1.0]) if rank == 0 else by_hand([1.0] * 3, [-1.0] * 3)
    whole = random_batch(seed=11)
    rows = {"split": (slice(0, 2), slice(2, None)), "one_rank_empty": (slice(0, 0), slice(0, None))}[name][rank]
    return Batch(*(tensor[rows] for tensor in whole.inputs()))


STRATEGIES = {
    "bapo": BAPOClip(weighting="none"),
    "weighted": BAPOClip(target=0.6),
    "fixed": FixedClip(),
}


def _worker(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    calls = 0
    all_reduce = dist.all_reduce

    def counting(*args, **kwargs):
        nonlocal calls
        calls += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counting
    results = {}
    for batch in ("B070", "split", "one_rank_empty"):
        for name, strategy in STRATEGIES.items():
            calls = 0
            results[f"{batch}/{name}"] = asdict(strategy.bounds(*_part(batch, rank).inputs())) | {"calls": calls}
    Path(folder, f"rank_{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_worker, args=(str(folder),), nprocs=2)
    return [json.loads((folder / f"rank_{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]


@pytest.mark.dist
def test_ranks_search_together(results):
    """B070: P = 3, N = 1 and P = 0, N = 3 make a share of 3/7 >= .4, so both keep the start bounds."""
    for rank in results:
        bounds = rank["B070/bapo"]
        assert (bounds["low"], bounds["high"], bounds["steps"]) == (0.6, 1.2, 0)
        assert bounds["measure"] == pytest.approx(3 / 7)


@pytest.mark.dist
@pytest.mark.parametrize("batch", ["split", "one_rank_empty"])
@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_find_what_one_process_finds(results, batch, name):
    alone = STRATEGIES[name].bounds(*random_batch(seed=11).inputs())
    for rank in results:
        bounds = rank[f"{batch}/{name}"]
        assert (bounds["low"], bounds["high"], bounds["steps"]) == (alone.low, alone.high, alone.steps)
        assert bounds["measure"] == pytest.approx(alone.measure, rel=1e-12)
        assert bounds["gradient_share"] == pytest.approx(alone.gradient_share, rel=1e-12)
        assert bounds["empty"] is False


@pytest.mark.dist
def test_a_call_costs_one_all_reduce(results):
    assert {bounds["calls"] for rank in results for bounds in rank.values()} == {1}


def test_without_ranks_nothing_is_reduced(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("all_reduce was called")

    monkeypatch.setattr(torch.distributed, "all_reduce", refuse)
    BAPOClip().bounds(*random_batch(seed=0).inputs())
