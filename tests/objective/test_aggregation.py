"""From a value per token to one number."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.errors import InputError
from bapo_lightning.objective import aggregate, aggregation_denominator, masked_mean, masked_sum

MODES = ["token_mean", "sequence_mean", "constant"]


def rows(*lengths: int, width: int) -> torch.Tensor:
    return torch.arange(width) < torch.tensor(lengths)[:, None]


def gradient_of(values: torch.Tensor, mask: torch.Tensor, *arguments) -> tuple[float, torch.Tensor]:
    values = values.clone().requires_grad_()
    result = aggregate(values, mask, *arguments)
    result.backward()
    return result.item(), values.grad


def test_token_mean_of_micro_batches_with_one_denominator():
    """B055: one token of loss 1 and nine tokens of loss 0 give .1 for every split, not .5."""
    mask = rows(1, 9, width=9)
    values = torch.zeros(2, 9)
    values[0, 0] = 1.0
    denominator = aggregation_denominator(mask)
    parts = [aggregate(values[i : i + 1], mask[i : i + 1], "token_mean", denominator) for i in range(2)]
    assert aggregate(values, mask).item() == pytest.approx(0.1)
    assert sum(parts).item() == pytest.approx(0.1)


def test_token_mean_over_ranks_whose_gradients_are_averaged():
    """B056: 2 tokens of +1 and 8 of -1 on two ranks: .4 and -1.6, their mean -.6 (not 0)."""
    ranks = [torch.ones(1, 2), -torch.ones(1, 8)]
    masks = [torch.ones_like(values, dtype=torch.bool) for values in ranks]
    tokens = sum(aggregation_denominator(mask) for mask in masks)
    losses = [aggregate(*pair, "token_mean", tokens / 2).item() for pair in zip(ranks, masks, strict=True)]
    assert losses == pytest.approx([0.4, -1.6])
    assert sum(losses) / 2 == pytest.approx(-0.6)


@pytest.mark.parametrize("mode", MODES)
def test_gradient_of_one_batch_as_1x8_and_as_4x2_sequences(mode):
    """B057: the same to 1e-6, not divided by the number of micro-batches once more."""
    generator = torch.Generator().manual_seed(0)
    values, mask = torch.randn(8, 5, generator=generator), rows(5, 1, 3, 2, 4, 5, 1, 2, width=5)
    _, whole = gradient_of(values, mask, mode)
    denominator = aggregation_denominator(mask, mode)
    parts = [gradient_of(values[i : i + 2], mask[i : i + 2], mode, denominator)[1] for i in range(0, 8, 2)]
    torch.testing.assert_close(torch.cat(parts), whole, atol=1e-6, rtol=0)


def test_masked_tokens_do_not_count_below_the_line():
    """B058: 40 tokens of loss 1, 8 of them masked: 1.0, not .8."""
    mask = torch.arange(40).reshape(1, 40) < 32
    assert aggregate(torch.ones(1, 40), mask).item() == 1.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("denominator", [None, 0, torch.tensor(0), 12.0])
def test_fully_masked_batch_gives_zero_and_runs_backward(mode, denominator):
    """B059: loss 0, gradients finite zeros, whatever stands under the mask."""
    values = torch.tensor([[1.0, math.nan], [math.inf, -math.inf]])
    loss, gradient = gradient_of(values, torch.zeros(2, 2, dtype=torch.bool), mode, denominator)
    assert loss == 0.0
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(("mode", "expected"), [("token_mean", -0.6), ("sequence_mean", 0.0), ("constant", -0.3)])
def test_modes_by_hand(mode, expected):
    """B060: 2 tokens of +1 and 8 of -1, length 10."""
    values = torch.tensor([[1.0], [-1.0]]).expand(2, 10)
    assert aggregate(values, rows(2, 8, width=10), mode).item() == pytest.approx(expected)


def test_mode_is_token_mean_by_default():
    values = torch.tensor([[1.0], [-1.0]]).expand(2, 10)
    assert aggregate(values, rows(2, 8, width=10)).item() == pytest.approx(-0.6)


def test_denominators_by_hand():
    mask = rows(2, 0, 3, width=4)
    counts = {mode: aggregation_denominator(mask, mode).item() for mode in MODES}
    assert counts == {"token_mean": 5, "sequence_mean": 2, "constant": 12}
    assert aggregation_denominator(mask, "constant", length=100).item() == 300
    assert aggregation_denominator(mask).dtype == torch.int64


def test_a_response_without_tokens_counts_neither_above_nor_below_the_line():
    mask = rows(2, 0, width=2)
    assert aggregate(torch.ones(2, 2), mask, "sequence_mean").item() == 1.0


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_cut_and_order_of_an_update_give_its_loss_and_gradient(mode, data):
    num_rows, width = data.draw(st.integers(1, 6)), 4
    lengths = data.draw(st.lists(st.integers(0, width), min_size=num_rows, max_size=num_rows))
    count = num_rows * width
    flat = data.draw(st.lists(st.floats(-10, 10), min_size=count, max_size=count))
    values, mask = torch.tensor(flat, dtype=torch.float64).reshape(num_rows, width), rows(*lengths, width=width)
    order = torch.tensor(data.draw(st.permutations(range(num_rows))))
    size = data.draw(st.integers(1, num_rows))

    loss, gradient = gradient_of(values, mask, mode)
    denominator = aggregation_denominator(mask, mode)
    parts = [gradient_of(values[part], torch.where(mask[part], 1, 0), mode, denominator) for part in order.split(size)]
    assert sum(part for part, _ in parts) == pytest.approx(loss, abs=1e-9)
    torch.testing.assert_close(torch.cat([grad for _, grad in parts])[order.argsort()], gradient)
    dirty = torch.where(mask, values, math.nan)
    assert gradient_of(dirty, mask, mode)[0] == loss


def test_sums_are_float32_for_half_precision():
    values = torch.ones(1, 3000, dtype=torch.bfloat16)
    result = aggregate(values, torch.ones(1, 3000, dtype=torch.bool), "token_mean", 1)
    assert (result.dtype, result.item()) == (torch.float32, 3000.0)


def test_float64_stays_float64_with_a_denominator_of_another_type():
    mask = torch.ones(1, 3, dtype=torch.bool)
    for denominator in (3, 3.0, torch.tensor(3), torch.tensor(3.0)):
        result = aggregate(torch.full((1, 3), 0.1, dtype=torch.float64), mask, "token_mean", denominator)
        assert (result.dtype, result.item()) == (torch.float64, pytest.approx(0.1, rel=1e-15))


def test_unknown_mode_is_refused():
    mask = torch.ones(1, 1, dtype=torch.bool)
    for call in (lambda: aggregate(torch.ones(1, 1), mask, "mean"), lambda: aggregation_denominator(mask, "mean")):
        with pytest.raises(InputError, match="must be one of token_mean, sequence_mean, constant, got 'mean'"):
            call()


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"values \(2, 3\) and mask \(1, 3\) must have one shape"):
        aggregate(torch.ones(2, 3), torch.ones(1, 3, dtype=torch.bool))


def test_masked_mean_leaves_padding_out():
    """B064: entropies [.5, .5, 0, 0], mask [1, 1, 0, 0]: .5, not .25."""
    values, mask = torch.tensor([[0.5, 0.5, 0.0, 0.0]]), torch.tensor([[1, 1, 0, 0]])
    assert masked_mean(values, mask).item() == 0.5
    metric = masked_sum(values.requires_grad_(), mask)
    assert (metric.total.item(), metric.count.item()) == (1.0, 2)
    assert not metric.total.requires_grad


def test_metric_of_nothing_has_count_zero():
    """B059: absent instead of NaN."""
    metric = masked_sum(torch.tensor([[math.nan]]), torch.tensor([[False]]))
    assert (metric.total.item(), metric.count.item()) == (0.0, 0)
