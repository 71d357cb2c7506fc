"""Batches for the tests of this folder: by hand and random; and a search by plain steps to compare with."""

import math
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor

from bapo_lightning.clipping import ClipBounds, ClippingStrategy, call_bounds


@dataclass(frozen=True)
class Batch:
    """Inputs of ``bounds``, all [B, T] float64 but the bool mask."""

    log_ratio: Tensor
    advantages: Tensor
    mask: Tensor
    rollout_log_probs: Tensor

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.log_ratio, self.advantages, self.mask, self.rollout_log_probs

    @property
    def entropy(self) -> Tensor:
        """Some entropy for each token, fixed by the token."""
        return self.rollout_log_probs.abs() + 0.1 * self.advantages.abs()

    @property
    def proximal_log_probs(self) -> Tensor:
        """Halfway between the policy that sampled and the one that is trained."""
        return self.rollout_log_probs + 0.5 * self.log_ratio

    def bounds(self, strategy: ClippingStrategy) -> ClipBounds:
        """The strategy's window, with whatever it needs."""
        return call_bounds(strategy, *self.inputs(), entropy=self.entropy, proximal_log_probs=self.proximal_log_probs)

    def rows(self, rows: slice) -> "Batch":
        return Batch(*(tensor[rows] for tensor in self.inputs()))

    def with_one_advantage_a_response(self) -> "Batch":
        return replace(self, advantages=self.advantages[:, :1].expand(self.advantages.shape))

    def tokens(self) -> list[tuple[float, float, float]]:
        """(ratio, advantage, π_rollout) of the unmasked tokens."""
        kept = self.mask.flatten().tolist()
        ratio = self.log_ratio.clamp(max=20.0).exp()
        columns = (t.flatten().tolist() for t in (ratio, self.advantages, self.rollout_log_probs.exp()))
        return [(r, a, p) for r, a, p, keep in zip(*columns, kept, strict=True) if keep]


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


def strange_batch(seed: int) -> Batch:
    """Up to 4 × 6 tokens; every seventh kind of batch is a degenerate one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*choices: float) -> float:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    batch = random_batch(seed, int(draw(1, 2, 4)), int(draw(1, 3, 6)))
    shape = batch.log_ratio.shape
    kind = seed % 7
    if kind == 1:
        return replace(batch, log_ratio=torch.zeros_like(batch.log_ratio))
    if kind == 2:
        return replace(batch, advantages=batch.advantages.abs() * draw(1.0, -1.0, 0.0))
    if kind == 3:
        return replace(batch, mask=batch.mask & (torch.rand(shape, generator=generator) < draw(0.0, 0.3)))
    if kind == 4:
        return replace(batch, log_ratio=batch.log_ratio * 40.0)
    if kind == 5:
        # Ratios on the bounds themselves, which clip nothing.
        on_bounds = torch.tensor([0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75], dtype=torch.float64).log()
        return replace(batch, log_ratio=on_bounds[torch.randint(7, shape, generator=generator)])
    return batch


def search_by_steps(
    batch: Batch,
    *,
    target: float,
    low: tuple[float, float, float],
    high: tuple[float, float, float],
    contribution: str,
    weighting: str,
    order: str,
    measure: str,
    dual_clip: float | None = None,
    clamp_last_step: bool = False,
) -> tuple[float, float, int, float]:
    """Algorithm 1, one step and one measurement at a time, with token loops and no tensors.

    ``low`` and ``high`` are (start, limit, step). Returns the bounds, the steps and the measure.
    """
    tokens = [(r, a, p if weighting == "rollout_prob" else 1.0) for r, a, p in batch.tokens()]
    one_sided = not any(a < 0 for _, a, _ in tokens)
    dual = math.inf if dual_clip is None else dual_clip

    def next_bound(start: float, limit: float, step: float, count: int) -> float | None:
        bound = round(start + (count + 1) * step, 12)
        if bound <= limit:
            return bound
        before = round(start + count * step, 12)
        return limit if clamp_last_step and before < limit else None

    (c_low, c_high), steps_low, steps_high = (low[0], high[0]), 0, 0
    while True:
        if contribution == "value":
            p = math.fsum(w * a * min(r, c_high) for r, a, w in tokens if a > 0)
            n = math.fsum(w * -a * max(r, c_low) for r, a, w in tokens if a < 0)
        else:
            p = math.fsum(w * a * r for r, a, w in tokens if a > 0 and r <= c_high)
            n = math.fsum(w * -a * r for r, a, w in tokens if a < 0 and c_low <= r <= dual)
        bottom = {"share": p + n, "pos_neg": n, "signed": abs(p - n)}[measure]
        nothing = (1.0 if measure == "share" else math.inf) if one_sided or p > 0 else 0.0
        value = p / bottom if bottom else nothing
        next_low = next_bound(*low, steps_low) if low[0] < low[1] else None
        next_high = next_bound(*high, steps_high) if high[0] < high[1] else None
        if value >= target * (1 - 1e-12) or (next_low is None and next_high is None):
            return c_low, c_high, steps_low + steps_high, value
        if next_high is None or (order == "low_first" and next_low is not None):
            c_low, steps_low = next_low, steps_low + 1
        else:
            c_high, steps_high = next_high, steps_high + 1
