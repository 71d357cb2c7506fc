"""Cutting an update by tokens."""

import math

import pytest
import torch
from harness import random_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_update import gradient_of_update

from bapo_lightning.clipping import GSPO, BAPOClip, FixedClip
from bapo_lightning.errors import InputError
from bapo_lightning.micro_batches import cut_by_responses, cut_by_tokens
from bapo_lightning.models.sequences import in_one_row, in_packed_rows, in_rows
from bapo_lightning.module import PolicyModule
from bapo_lightning.packing import best_fit, pack
from bapo_lightning.types import Completion, Prompt, TokenBatch, Trajectory


def batch_of_lengths(lengths, prompt=1):
    """Responses such that prompt and response together have these lengths, all > prompt."""
    trajectories = []
    for i, length in enumerate(lengths):
        count = length - prompt
        completion = Completion((3 + i,) * count, (-1.0,) * count, (0,) * count, "stop")
        trajectories.append(Trajectory(Prompt(str(i), "", ""), (9,) * prompt, completion, 0, i, 0, reward=1.0))
    return TokenBatch.from_trajectories(trajectories, pad_id=2, temperature=1.0, length_limit=max(lengths))


def shape(parts):
    return [part.batch.lengths.tolist() for part in parts]


def test_parts_by_hand():
    batch = batch_of_lengths([3, 8, 2, 5, 8])

    def cut(tokens, **layout):
        return shape(cut_by_tokens(batch, tokens, **{"one_row": False, **layout})[1])

    # Two parts are the fewest; rows of 14 are the narrowest that give two: 8 + 5 and 8 + 3 + 2.
    assert cut(16, packs=True) == [[8, 5], [8, 3, 2]]
    assert cut(24, packs=True) == [[8, 5], [8, 3, 2]]
    # Three parts evened to rows of 10: 8 + 2, 8, 5 + 3.
    assert cut(13, packs=True) == [[8, 2], [8], [5, 3]]
    # A row of 5 would leave room for 3.
    assert cut(8, packs=True) == [[8], [8], [5, 3], [2]]
    assert cut(8, packs=False) == [[8], [8], [5], [3, 2]]
    # In one row there is no padding: two parts of 13.
    assert cut(20, one_row=True) == [[8, 5], [8, 3, 2]]
    assert cut(26, one_row=True) == [[8, 8, 5, 3, 2]]


def test_parts_can_be_as_many_as_another_rank_needs():
    batch = batch_of_lengths([4, 4, 4, 4])
    for wanted, given_parts in ((1, 1), (2, 2), (4, 4), (7, 4)):
        _, parts = cut_by_tokens(batch, 16, one_row=False, at_least=wanted)
        assert len(parts) == given_parts


def test_rows_of_a_batch_follow_their_parts():
    batch = batch_of_lengths([3, 8, 2, 5, 8])
    ordered, parts = cut_by_tokens(batch, 16, one_row=False)
    assert ordered.lengths.tolist() == [8, 5, 8, 3, 2]
    for part in parts:
        assert part.batch.lengths.tolist() == ordered.lengths[part.start : part.stop].tolist()
        assert torch.equal(part.batch.response_ids, ordered.rows(part.start, part.stop).response_ids)


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 40), min_size=1, max_size=40),
    st.integers(40, 200),
    st.booleans(),
    st.booleans(),
    st.integers(1, 6),
)
def test_no_response_is_lost_and_no_part_is_too_large(lengths, most, one_row, packs, at_least):
    batch = batch_of_lengths(lengths)
    ordered, parts = cut_by_tokens(batch, most, one_row=one_row, packs=packs, at_least=at_least)
    assert sorted(n for part in shape(parts) for n in part) == sorted(lengths)
    assert ordered.lengths.tolist() == [n for part in shape(parts) for n in part]
    assert max(lengths) in shape(parts)[0]
    assert [0, *(p.stop for p in parts)] == [*(p.start for p in parts), len(lengths)]
    for part in parts:
        sizes = part.batch.lengths.tolist()
        if one_row:
            assert sum(sizes) <= most
        else:
            rows = in_packed_rows(part.batch) if packs else in_rows(part.batch)
            assert rows.inputs["input_ids"].numel() <= most


def test_a_long_tail_pads_less_than_a_twentieth():
    """256 responses, lengths log-normal (median 200, sigma 0.8, at most 4,096)."""
    generator = torch.Generator().manual_seed(0)
    lengths = (200 * (0.8 * torch.randn(256, generator=generator)).exp()).clamp(8, 4096).int().tolist()
    batch = batch_of_lengths(lengths)

    def positions(parts, lay_out):
        return sum(lay_out(part.batch).inputs["input_ids"].numel() for part in parts)

    for tokens in (4096, 8192, 16384):
        _, parts = cut_by_tokens(batch, tokens, one_row=False)
        assert 1 - sum(lengths) / positions(parts, in_packed_rows) < 0.05
    _, parts = cut_by_tokens(batch, 16384, one_row=True)
    assert positions(parts, in_one_row) == sum(lengths)
    # By number of responses, as they come, two thirds and more of the positions are padding.
    assert 1 - sum(lengths) / positions(cut_by_responses(batch, 32), in_rows) > 0.66


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(30, 60), st.none() | st.integers(1, 5))
def test_rows_hold_what_fits(lengths, width, most_rows):
    rows = best_fit(lengths, width, most_rows)
    placed = [number for row in rows for number in row]
    assert len(placed) == len(set(placed))
    assert all(sum(lengths[n] for n in row) <= width for row in rows)
    left = [lengths[n] for n in set(range(len(lengths))) - set(placed)]
    if most_rows is None:
        assert left == []
        # No two rows are at most half full.
        assert len(rows) <= 2 * math.ceil(sum(lengths) / width)
    else:
        assert len(rows) <= most_rows
        # What is left fits into no row.
        assert all(sum(lengths[n] for n in row) + size > width for row in rows for size in left)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.none() | st.integers(30, 200))
def test_packing_never_pads_more_than_one_row_each(lengths, most):
    packed = pack(lengths, most)
    placed = [number for row in packed.rows for number in row]
    assert packed.num_tokens == sum(lengths[n] for n in placed)
    assert max(sum(lengths[n] for n in row) for row in packed.rows) == packed.width
    assert max(lengths) in [lengths[n] for n in placed]
    if most is None:
        assert sorted(placed) == list(range(len(lengths)))
        assert packed.num_positions <= len(lengths) * max(lengths)
    else:
        assert packed.num_positions <= most


def test_a_response_that_fits_nowhere_is_named():
    with pytest.raises(InputError, match=r"model\.micro_batch_tokens is 7, less than the 8 tokens"):
        cut_by_tokens(batch_of_lengths([3, 8]), 7, one_row=False)
    with pytest.raises(InputError, match="set one of them"):
        PolicyModule(None, micro_batch_size=1, micro_batch_tokens=8)
    with pytest.raises(InputError, match="micro_batch_tokens must be at least 1"):
        PolicyModule(None, micro_batch_tokens=0)


@pytest.mark.parametrize("statistics_pass", ["keep_graphs", "extra_forward", "auto"])
@pytest.mark.parametrize(
    "clipping", [FixedClip(), BAPOClip(target=0.6), GSPO(low=0.7, high=1.3)], ids=["fixed", "bapo", "gspo"]
)
def test_loss_bounds_and_gradient_do_not_depend_on_the_cut(model_folder, clipping, statistics_pass):
    """Against the whole update in one pass, in float64."""
    batch = random_batch(missing=(4,), dtype=torch.float64)
    options = {
        "clipping": clipping,
        "statistics_pass": statistics_pass,
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.01,
    }
    whole, record = gradient_of_update(model_folder(), batch, **options)
    for tokens in (10, 17, 1000):
        cut, cut_record = gradient_of_update(model_folder(), batch, micro_batch_tokens=tokens, **options)
        assert cut_record.loss == pytest.approx(record.loss, abs=1e-9)
        assert (cut_record.bounds.low, cut_record.bounds.high) == (record.bounds.low, record.bounds.high)
        assert cut_record.clipped_low.sum() == record.clipped_low.sum()
        for name in whole:
            torch.testing.assert_close(cut[name], whole[name], atol=1e-9, rtol=0, msg=name)
