"""The regime of a policy on the built-in task: what decides how much work a clipping strategy has."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bapo_lightning.advantages import GroupAdvantage
from bapo_lightning.clipping import BAPOClip
from bapo_lightning.errors import InputError
from bapo_lightning.rewards import MathReward
from bapo_lightning.seeding import derive_seed
from bapo_lightning.tasks.digits.demonstrations import RESPONSE_LIMIT
from bapo_lightning.tasks.source import PromptSource
from bapo_lightning.types import FinishReason, Prompt

_BATCH_SIZE = 512


@dataclass(frozen=True)
class Regime:
    """What sampling at temperature 1 gives."""

    success: float
    """Share of right responses."""

    length_success: float
    """Mean tokens of right responses, end token included."""

    length_failure: float
    """Mean tokens of the others; those cut at the limit count the limit."""

    length_ratio: float
    """Failures' mean length over successes', L₋/L₊."""

    truncated_failures: float
    """Share of the failures that ran into the token limit."""

    entropy: float
    """Mean entropy per sampled token, nats."""

    positive_share: float
    """P/(P+N) at ratio 1, tokens weighted by π_rollout: what `BAPOClip` measures at a phase's first update."""

    positive_share_unweighted: float
    """The same without weights."""

    num_responses: int
    """How many responses were sampled."""


@dataclass(frozen=True)
class _Samples:
    ids: Tensor
    log_probs: Tensor
    entropy: Tensor
    mask: Tensor


def measure_regime(
    policy: Any,
    tokenizer: Any,
    task: PromptSource,
    *,
    group_size: int = 8,
    max_new_tokens: int = RESPONSE_LIMIT,
    seed: int = 0,
) -> Regime:
    """Sample groups of responses with plain transformers ``generate``, score them, and describe them.

    Advantages are those of `GroupAdvantage` (GRPO); rewards those of `MathReward`.

    Args:
        policy: A Hugging Face causal language model in eval mode.
        tokenizer: Its tokenizer.
        task: Prompts of equal length in tokens.
        group_size: Responses a prompt, ≥ 2.
        max_new_tokens: Token limit of a response.
        seed: Seeds the sampling; the global generator is left as it was.

    Returns:
        The regime.

    Raises:
        InputError: No response is right, or all are: there is no regime to measure.
    """
    prompts = [prompt for prompt in task.load() for _ in range(group_size)]
    samples = _sample(policy, tokenizer, prompts, max_new_tokens, derive_seed(seed, "digits", "regime"))
    lengths = samples.mask.sum(1)
    ended = (samples.ids == tokenizer.eos_token_id).any(1)
    reasons: list[FinishReason] = ["stop" if has_ended else "length" for has_ended in ended.tolist()]
    texts = tokenizer.batch_decode(samples.ids.where(samples.mask, tokenizer.pad_token_id), skip_special_tokens=True)
    scores = MathReward().score(texts, [prompt.answer for prompt in prompts], reasons)
    right = torch.tensor([score.status == "correct" for score in scores])
    if not 0 < int(right.sum()) < len(right):
        raise InputError(
            f"{int(right.sum())} of {len(right)} responses are right: lengths by outcome cannot be compared"
        )
    groups = torch.arange(len(right)) // group_size
    advantages = GroupAdvantage()(right.float(), groups)[:, None].expand(samples.mask.shape)
    no_change = torch.zeros_like(samples.log_probs)

    def share(clipping: BAPOClip) -> float:
        return clipping.bounds(no_change, advantages, samples.mask, samples.log_probs).value_share_before

    length_success = float(lengths[right].float().mean())
    length_failure = float(lengths[~right].float().mean())
    return Regime(
        success=float(right.float().mean()),
        length_success=length_success,
        length_failure=length_failure,
        length_ratio=length_failure / length_success,
        truncated_failures=float((~ended)[~right].float().mean()),
        entropy=float(samples.entropy[samples.mask].mean()),
        positive_share=share(BAPOClip()),
        positive_share_unweighted=share(BAPOClip(weighting="none")),
        num_responses=len(right),
    )


def _sample(policy: Any, tokenizer: Any, prompts: list[Prompt], max_new_tokens: int, seed: int) -> _Samples:
    """Responses to plain-text prompts; the mask ends with the first end token."""
    parts = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for start in range(0, len(prompts), _BATCH_SIZE):
            texts = [str(prompt.messages) for prompt in prompts[start : start + _BATCH_SIZE]]
            inputs = tokenizer(texts, return_tensors="pt")
            out = policy.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                return_dict_in_generate=True,
                output_logits=True,
            )
            ids = out.sequences[:, inputs["input_ids"].shape[1] :]
            log_probs = torch.stack(out.logits, dim=1).float().log_softmax(-1)
            has_ended = (ids == tokenizer.eos_token_id).cumsum(1)
            missing = max_new_tokens - ids.shape[1]
            part = _Samples(
                ids=ids,
                log_probs=log_probs.gather(-1, ids[..., None])[..., 0],
                entropy=-(log_probs.exp() * log_probs).sum(-1),
                mask=(has_ended - (ids == tokenizer.eos_token_id).long()) == 0,
            )
            parts.append(_Samples(*(F.pad(value, (0, missing)) for value in vars(part).values())))
    return _Samples(*(torch.cat(values) for values in zip(*(vars(p).values() for p in parts), strict=True)))
