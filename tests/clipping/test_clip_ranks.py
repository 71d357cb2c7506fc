"""One choice over all ranks: two gloo processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from catalogue import CATALOGUE
from clip_batches import Batch, by_hand, random_batch

from bapo_lightning.clipping import BAPOClip, ClipBounds
from bapo_lightning.errors import InputError

CUTS = {"split": (slice(0, 2), slice(2, None)), "one_rank_empty": (slice(0, 0), slice(0, None))}


def _whole(name: str) -> Batch:
    batch = random_batch(seed=11)
    return batch.with_one_advantage_a_response() if CATALOGUE[name].sequence_level else batch


def _run(name: str, batch: Batch) -> dict[str, Any]:
    strategy = CATALOGUE[name].strategy
    bounds = batch.bounds(strategy)
    log_ratio = batch.log_ratio.clone().requires_grad_()
    surrogate = strategy.surrogate(log_ratio, batch.advantages, bounds)
    torch.where(batch.mask, surrogate.objective, 0.0).sum().backward()
    return {"bounds": bounds, "gradient": log_ratio.grad, "clipped": surrogate.clipped}


def _error(batch: Batch) -> str:
    try:
        BAPOClip().bounds(*batch.inputs())
    except InputError as error:
        return str(error)
    return ""


def _worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    calls = 0
    all_reduce = dist.all_reduce

    def counting(*args, **kwargs):
        nonlocal calls
        calls += 1
        return all_reduce(*args, **kwargs)

    dist.all_reduce = counting
    results: dict[str, Any] = {}
    for name in CATALOGUE:
        for cut, rows in CUTS.items():
            calls = 0
            results[f"{cut}/{name}"] = _run(name, _whole(name).rows(rows[rank])) | {"calls": calls}
    share = by_hand([1.0] * 4, [1.0, 1.0, 1.0, -1.0]) if rank == 0 else by_hand([1.0] * 3, [-1.0] * 3)
    results["B070"] = BAPOClip(weighting="none").bounds(*share.inputs())
    results["nan"] = _error(by_hand([1.0, float("nan") if rank == 1 else 1.0], [1.0, -1.0]))
    torch.save(results, f"{folder}/rank_{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(_worker, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder, f"rank_{rank}.pt"), weights_only=False) for rank in (0, 1)]


@pytest.mark.dist
def test_ranks_search_together(results):
    """B070: P = 3, N = 1 and P = 0, N = 3 make a share of 3/7 >= .4, so both keep the start bounds."""
    for rank in results:
        bounds = rank["B070"]
        assert (bounds.low, bounds.high, bounds.steps) == (0.6, 1.2, 0)
        assert bounds.measure == pytest.approx(3 / 7)


@pytest.mark.dist
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", CATALOGUE)
def test_ranks_do_what_one_process_does(results, cut, name):
    alone = _run(name, _whole(name))
    parts = [rank[f"{cut}/{name}"] for rank in results]
    torch.testing.assert_close(torch.cat([p["gradient"] for p in parts]), alone["gradient"], rtol=1e-12, atol=0.0)
    assert torch.equal(torch.cat([p["clipped"] for p in parts]), alone["clipped"])
    for part in parts:
        bounds: ClipBounds = part["bounds"]
        if not isinstance(bounds.low, torch.Tensor):
            assert (bounds.low, bounds.high, bounds.steps) == (
                alone["bounds"].low,
                alone["bounds"].high,
                alone["bounds"].steps,
            )
        for share in ("measure", "value_share", "gradient_share"):
            assert getattr(bounds, share) == pytest.approx(getattr(alone["bounds"], share), rel=1e-12)
        assert bounds.empty is False


@pytest.mark.dist
@pytest.mark.parametrize("name", ["fixed", "bapo", "bapo_official", "dcpo", "gspo", "cispo"])
def test_a_call_costs_one_all_reduce(results, name):
    assert {rank[f"{cut}/{name}"]["calls"] for rank in results for cut in CUTS} == {1}


@pytest.mark.dist
def test_a_value_that_is_not_finite_stops_every_rank(results):
    """The rank that has it says where; the other one would hang in the next collective if it went on."""
    messages = [rank["nan"] for rank in results]
    assert messages[0].startswith("1 tokens of other ranks")
    assert "log_ratio is nan at response 0, token 1" in messages[1]


def test_without_ranks_nothing_is_reduced(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("all_reduce was called")

    monkeypatch.setattr(torch.distributed, "all_reduce", refuse)
    for name in CATALOGUE:
        _run(name, _whole(name))
