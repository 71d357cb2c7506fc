"""Batches for the tests of this folder: by hand and random; and a search by plain steps to compare with."""

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Inputs of ``bounds``, all [B, T] float64 but the bool mask."""

    log_ratio: Tensor
    advantages: Tensor
    mask: Tensor
    rollout_log_probs: Tensor

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.log_ratio, self.advantages, self.mask, self.rollout_log_probs

    def tokens(self) -> list[tuple[float, float, float]]:
        """(ratio, advantage, π_rollout) of the unmasked tokens."""
        kept = self.mask.flatten().tolist()
        columns = (t.flatten().tolist() for t in (self.log_ratio, self.advantages, self.rollout_log_probs))
        rows = zip(*columns, kept, strict=True)
        return [(math.exp(min(r, 20.0)), a, math.exp(p)) for r, a, p, keep in rows if keep]


def by_hand(ratios: list[float], advantages: list[float], probs: list[float] | None = None) -> Batch:
    """One response with these ratios, advantages and π_rollout (1 by default), nothing masked."""
    ratio = torch.tensor([ratios], dtype=torch.float64)
    prob = torch.ones_like(ratio) if probs is None else torch.tensor([probs], dtype=torch.float64)
    advantage = torch.tensor([advantages], dtype=torch.float64)
    return Batch(ratio.log(), advantage, torch.ones_like(ratio, dtype=torch.bool), prob.log())


def random_batch(seed: int, num_responses: int = 6, num_tokens: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_responses, num_tokens)
    lengths = torch.randint(1, num_tokens + 1, (num_responses, 1), generator=generator)
    return Batch(
        log_ratio=0.6 * torch.randn(shape, generator=generator, dtype=torch.float64),
        advantages=torch.randn((num_responses, 1), generator=generator, dtype=torch.float64).expand(shape),
        mask=torch.arange(num_tokens) < lengths,
        rollout_log_probs=-torch.rand(shape, generator=generator, dtype=torch.float64) * 3,
    )


@st.composite
def batches(draw: st.DrawFn, max_log_ratio: float = 3.0) -> Batch:
    """Up to 3 × 5 tokens: one-sided, all-zero, empty and on-policy ones among them."""
    shape = draw(st.tuples(st.integers(0, 3), st.integers(1, 5)))
    count = shape[0] * shape[1]

    def tensor(values: st.SearchStrategy[float]) -> Tensor:
        flat = draw(st.lists(values, min_size=count, max_size=count))
        return torch.tensor(flat, dtype=torch.float64).reshape(shape)

    size = st.floats(0.01, 2.0)
    advantage = draw(st.sampled_from([size, size.map(lambda a: -a), st.just(0.0), None]))
    on_policy = draw(st.integers(0, 4)) == 0
    return Batch(
        log_ratio=tensor(st.just(0.0) if on_policy else st.floats(-max_log_ratio, max_log_ratio)),
        advantages=tensor(st.one_of(size, size.map(lambda a: -a), st.just(0.0)) if advantage is None else advantage),
        mask=tensor(st.sampled_from([1.0, 1.0, 1.0, 0.0])).bool(),
        rollout_log_probs=tensor(st.floats(-5.0, 0.0)),
    )


def search_by_steps(
    batch: Batch,
    *,
    target: float,
    low: tuple[float, int, float],
    high: tuple[float, int, float],
    contribution: str,
    weighting: str,
    order: str,
    measure: str,
) -> tuple[float, float, int, float]:
    """Algorithm 1, one step and one measurement at a time, with token loops and no tensors.

    ``low`` and ``high`` are (start, number of steps, step). Returns the bounds, the steps and the measure.
    """
    tokens = [(r, a, p if weighting == "rollout_prob" else 1.0) for r, a, p in batch.tokens()]
    one_sided = not any(a < 0 for _, a, _ in tokens)
    low_count = high_count = 0
    while True:
        c_low, c_high = low[0] + low_count * low[2], high[0] + high_count * high[2]
        positive = [
            w * a * (min(r, c_high) if contribution == "value" else r * (r <= c_high)) for r, a, w in tokens if a > 0
        ]
        negative = [
            w * -a * (max(r, c_low) if contribution == "value" else r * (r >= c_low)) for r, a, w in tokens if a < 0
        ]
        p, n = math.fsum(positive), math.fsum(negative)
        bottom = {"share": p + n, "pos_neg": n, "signed": abs(p - n)}[measure]
        nothing = (1.0 if measure == "share" else math.inf) if one_sided or p > 0 else 0.0
        value = p / bottom if bottom else nothing
        done = value >= target * (1 - 1e-12)
        first_low = order == "low_first"
        if done or (low_count == low[1] and high_count == high[1]):
            return c_low, c_high, low_count + high_count, value
        if (first_low and low_count < low[1]) or high_count == high[1]:
            low_count += 1
        else:
            high_count += 1
