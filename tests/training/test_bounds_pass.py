"""Bounds before the first backward pass: how many forward passes they cost, and one search or one a micro-batch."""

import json
import os
import socket
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from harness import fit, make_module, random_batch, weights

from bapo_lightning import statistics_pass
from bapo_lightning.clipping import BAPOClip, ClipHigher, DecoupledPPO, FixedClip, TruncatedIS
from bapo_lightning.errors import InputError
from bapo_lightning.objective import log_ratio
from bapo_lightning.statistics_pass import GraphSize

MOVING = BAPOClip(target=0.6, weighting="none")


def passes(monkeypatch, module, batch) -> dict[str, int]:
    """Forward passes of one update, with and without gradient."""
    counts = {"with gradient": 0, "without": 0}
    score = module.policy.score

    def counting(rows):
        counts["with gradient" if torch.is_grad_enabled() else "without"] += 1
        return score(rows)

    monkeypatch.setattr(module.policy, "score", counting)
    fit(module, [batch])
    return counts


@pytest.mark.parametrize(
    ("clipping", "size", "mode", "expected"),
    [
        (MOVING, None, "auto", (1, 0)),
        (MOVING, 2, "auto", (3, 0)),
        (MOVING, 2, "keep_graphs", (3, 0)),
        (MOVING, 2, "extra_forward", (3, 3)),
        (FixedClip(), None, "extra_forward", (1, 0)),
        (FixedClip(), 2, "extra_forward", (3, 0)),
    ],
)
def test_forward_passes_of_an_update(model_folder, monkeypatch, clipping, size, mode, expected):
    module = make_module(model_folder(), clipping=clipping, micro_batch_size=size, statistics_pass=mode)
    assert tuple(passes(monkeypatch, module, random_batch()).values()) == expected


def test_graphs_are_not_kept_where_memory_is_short(model_folder, monkeypatch):
    """The first forward pass was made to measure its graph; it counts as the first of the extra ones."""
    monkeypatch.setattr(statistics_pass, "free_bytes", lambda device: 1000)
    module = make_module(model_folder(), clipping=MOVING, micro_batch_size=2)
    assert tuple(passes(monkeypatch, module, random_batch()).values()) == (4, 2)
    tight = weights(module)
    monkeypatch.undo()
    module = make_module(model_folder(), clipping=MOVING, micro_batch_size=2)
    fit(module, [random_batch()])
    assert module.last_update.bounds.steps > 0
    for name, weight in weights(module).items():
        torch.testing.assert_close(weight, tight[name], rtol=0, atol=1e-7)


def test_the_size_of_a_graph_is_what_autograd_saves():
    """exp saves its result, a product both factors; the weight is there anyway, and each storage counts once."""
    weight = torch.ones(1000, requires_grad=True)
    given = torch.ones(1000)
    with GraphSize({weight.untyped_storage().data_ptr()}) as graph:
        (weight * given).exp().sum()
    assert graph.num_bytes == 2 * 4000


def test_each_micro_batch_may_search_for_itself(model_folder):
    """As the authors' code: the bounds of a micro-batch are those that it finds alone."""
    batch = random_batch()
    module = make_module(
        model_folder(), clipping=MOVING, micro_batch_size=2, bounds_scope="micro_batch", optimizer=None
    )
    fit(module, [batch])
    update = module.last_update
    ratios = log_ratio(update.log_probs, batch.rollout_log_probs)
    found = []
    for start in range(0, 6, 2):
        rows = slice(start, start + 2)
        alone = MOVING.bounds(ratios[rows], batch.advantages[rows], batch.loss_mask[rows])
        kept = batch.loss_mask[rows]
        assert (update.bounds.low[rows][kept] == torch.tensor(alone.low)).all()
        assert (update.bounds.high[rows][kept] == torch.tensor(alone.high)).all()
        found.append((alone.low, alone.high, alone.steps))
    assert len(set(found)) > 1
    assert update.bounds.steps == max(steps for _, _, steps in found)
    # The shares are of the whole update: against the definition.
    ratio, kept = ratios.exp(), batch.loss_mask
    value = (
        torch.where(batch.advantages > 0, ratio.minimum(update.bounds.high), ratio.maximum(update.bounds.low))
        * batch.advantages.abs()
    )
    positive, negative = (value[kept & side].sum() for side in (batch.advantages > 0, batch.advantages < 0))
    assert update.bounds.value_share == pytest.approx((positive / (positive + negative)).item(), rel=1e-5)


UNEVEN = {
    "one_window": {"clipping": MOVING},
    "one_window_extra_forward": {"clipping": MOVING, "statistics_pass": "extra_forward"},
    "fixed": {"clipping": FixedClip()},
    "a_window_each": {"clipping": MOVING, "bounds_scope": "micro_batch"},
}


def _fit_uneven(rank: int, model_folder: str, results: str, port: int) -> None:
    """Rank 0 has one micro-batch, rank 1 has three."""
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    batch, found = random_batch(), {}
    for name, settings in UNEVEN.items():
        module = make_module(Path(model_folder), micro_batch_size=2, **settings)
        fit(module, [batch.rows(0, 2) if rank == 0 else batch], devices=2, strategy="ddp")
        bounds = module.last_update.bounds
        found[name] = [bounds.value_share, bounds.steps, sum(w.double().sum().item() for w in weights(module).values())]
    Path(results, f"{rank}.json").write_text(json.dumps(found))


@pytest.mark.dist
def test_ranks_may_have_different_numbers_of_micro_batches(model_folder, tmp_path):
    """They meet in the same collectives, or they would wait for each other for ever; and end with the same weights."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_fit_uneven, args=(str(model_folder()), str(tmp_path), port), nprocs=2)
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    for name in UNEVEN:
        assert one[name] == pytest.approx(other[name], rel=1e-12), name


@pytest.mark.parametrize("clipping", [MOVING, BAPOClip(target=0.6), FixedClip()], ids=["unweighted", "bapo", "fixed"])
def test_with_one_micro_batch_both_scopes_agree(model_folder, clipping):
    results = []
    for scope in ("update", "micro_batch"):
        module = make_module(model_folder(), clipping=clipping, bounds_scope=scope)
        fit(module, [random_batch()])
        results.append((weights(module), module.last_update))
    assert all(torch.equal(results[0][0][name], weight) for name, weight in results[1][0].items())
    assert results[1][1].bounds.value_share == pytest.approx(results[0][1].bounds.value_share, rel=1e-6)


def test_an_update_without_proximal_log_probs_is_refused(model_folder):
    with pytest.raises(InputError, match="DecoupledPPO needs proximal_log_probs"):
        fit(make_module(model_folder(), clipping=DecoupledPPO()), [random_batch()])


@pytest.mark.parametrize("clipping", [DecoupledPPO(max_weight=1.1), TruncatedIS(cap=1.1)])
def test_at_the_start_of_a_phase_the_proximal_ratio_is_one(model_folder, clipping):
    """However stale the data: nothing is clipped, and a token weighs by what it was sampled with."""
    batch = random_batch()
    module = make_module(model_folder(), clipping=clipping)
    with torch.no_grad():
        proximal = module.policy.score(batch).log_probs
    fit(module, [type(batch)(**{**vars(batch), "proximal_log_probs": proximal})])
    update = module.last_update
    assert not (update.clipped_low | update.clipped_high).any()
    far = batch.loss_mask & ((proximal - batch.rollout_log_probs).exp() > 1.1)
    assert 0 < far.sum() < batch.loss_mask.sum()
    assert torch.equal((update.dropped | update.capped) & batch.loss_mask, far)


@pytest.mark.parametrize(("aggregation", "said"), [("token_mean", True), ("sequence_mean", False)])
def test_an_aggregation_other_than_the_sources_is_said(model_folder, caplog, aggregation, said):
    from bapo_lightning.clipping import GSPO

    fit(make_module(model_folder(), clipping=GSPO(), aggregation=aggregation), [random_batch()])
    assert ("GSPO is defined with model.aggregation=sequence_mean" in caplog.text) is said
    caplog.clear()
    fit(make_module(model_folder(), clipping=ClipHigher(), aggregation=aggregation), [random_batch()])
    assert "is defined with" not in caplog.text


@pytest.mark.parametrize("settings", [{"bounds_scope": "rank"}, {"statistics_pass": "never"}])
def test_unknown_modes_are_refused(model_folder, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        make_module(model_folder(), **settings)
