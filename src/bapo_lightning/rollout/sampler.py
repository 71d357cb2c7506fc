"""Sampling with one random stream per response, inside transformers' ``generate``."""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bapo_lightning.types import SamplingSettings


class SamplingCancelled(Exception):  # noqa: N818 - it is asked for, not an error
    """The run ends, and what is being sampled is not wanted any more."""


class RowStream(NamedTuple):
    """The random stream of one row."""

    seed: int
    position: int = 0
    """Draws that were made before: tokens of the response that earlier phases sampled."""


class SeededSampler:
    """A logits processor that draws each row's token from the row's own stream and records its log-prob.

    ``generate`` runs greedily; this processor leaves one token per row above −inf, so what it drew is what is taken. A
    row's draws depend on its seed and its position alone: not on its neighbours in the batch, nor on the rank, nor on
    how a response is cut into phases.

    Args:
        streams: One per row.
        sampling: Temperature and truncation. Temperature 0 takes the most probable token.
        max_new_tokens: Most steps.
        cancelled: Once set, the next step raises `SamplingCancelled`.
    """

    def __init__(
        self,
        streams: Sequence[RowStream],
        sampling: SamplingSettings,
        max_new_tokens: int,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.sampling = sampling
        self.step = 0
        self.tokens: list[Tensor] = []
        self.log_probs: list[Tensor] = []
        self._cancelled = cancelled
        self._uniform = torch.stack([_uniform_stream(stream, max_new_tokens) for stream in streams])

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Draw the next token of each row.

        Args:
            input_ids: [B, S]; the sequences so far.
            scores: [B, V]; next-token logits.

        Returns:
            [B, V]; 0 at the drawn token, −inf elsewhere.

        Raises:
            SamplingCancelled: Nobody waits for the tokens any more.
        """
        if self._cancelled is not None and self._cancelled.is_set():
            raise SamplingCancelled
        # A copy: `generate` may hand out a view that the next step overwrites.
        logits = scores.to(torch.float32, copy=True)
        greedy = self.sampling.temperature == 0.0
        if not greedy:
            logits = truncate(logits / self.sampling.temperature, input_ids, self.sampling)
        log_softmax = F.log_softmax(logits, dim=-1)
        tokens = logits.argmax(-1) if greedy else self._draw(log_softmax)
        self.tokens.append(tokens)
        self.log_probs.append(log_softmax.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))
        self.step += 1
        return torch.full_like(scores, float("-inf")).scatter(-1, tokens.unsqueeze(-1), 0.0)

    def _draw(self, log_softmax: Tensor) -> Tensor:
        """Invert the cumulative distribution in float64: token i is drawn when u lies in [F(i-1), F(i))."""
        cumulative = log_softmax.double().exp().cumsum(-1)
        uniform = self._uniform[:, self.step].to(cumulative.device)
        threshold = (uniform * cumulative[:, -1]).unsqueeze(-1)
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
        # Rounding may put the threshold at the total; the last token with any mass is meant then.
        last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous(), right=False).squeeze(-1)
        return torch.minimum(tokens, last)


def _uniform_stream(stream: RowStream, length: int) -> Tensor:
    """[length] float64 in [0, 1); drawn on the CPU, so that a device does not change the text."""
    generator = torch.Generator().manual_seed(stream.seed)
    return torch.rand(stream.position + length, dtype=torch.float64, generator=generator)[stream.position :]


def truncate(logits: Any, input_ids: Any, sampling: SamplingSettings) -> Tensor:
    """Apply top-k, top-p and min-p (evaluation only), with transformers' own processors.

    Args:
        logits: [B, V] tensor; already divided by the temperature.
        input_ids: [B, S] tensor.
        sampling: Which truncations are on.

    Returns:
        [B, V]; −inf where a token is cut off.
    """
    from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    if sampling.top_k > 0:
        logits = TopKLogitsWarper(sampling.top_k)(input_ids, logits)
    if sampling.top_p < 1.0:
        logits = TopPLogitsWarper(sampling.top_p)(input_ids, logits)
    if sampling.min_p > 0.0:
        logits = MinPLogitsWarper(sampling.min_p)(input_ids, logits)
    truncated: Tensor = logits
    return truncated
