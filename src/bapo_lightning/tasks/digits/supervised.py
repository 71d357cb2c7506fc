"""The warm start: supervised training of a tiny policy on noisy demonstrations, as a Lightning run of its own."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from bapo_lightning.errors import InputError
from bapo_lightning.seeding import derive_seed
from bapo_lightning.tasks.digits.demonstrations import Demonstrator
from bapo_lightning.tasks.digits.task import prompt_text
from bapo_lightning.tasks.digits.vocabulary import BOS, EOS, PAD, TOKEN_IDS, TOKENS

_NO_LOSS = -100
_CLEAN_SHARE = 0.2
"""The error rate rises from 0 to its value over this first part of the run: arithmetic is learned fastest unspoilt."""


@dataclass(frozen=True)
class Example:
    """A mini-batch of demonstrations."""

    input_ids: Tensor
    """[B, T] int64; prompt and response, padded on the right."""

    labels: Tensor
    """[B, T] int64; the response's ids, and -100 on the prompt and on padding."""


def build_policy(seed: int) -> Any:
    """Make an untrained Llama of 0.43 million parameters for the task's vocabulary.

    Two layers suffice for running sums. Short positions want fast rotations (``rope_theta`` 100), and the embedding and
    the head are separate, so that every engine can be given new weights.

    Args:
        seed: Seeds the initial weights; the global generator is left as it was.

    Returns:
        A ``LlamaForCausalLM`` in float32.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        initializer_range=0.08,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=False,
        pad_token_id=TOKEN_IDS[PAD],
        bos_token_id=TOKEN_IDS[BOS],
        eos_token_id=TOKEN_IDS[EOS],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "digits", "weights"))
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


class Demonstrations(IterableDataset[Example]):
    """Fresh mini-batches, one a step.

    Args:
        demonstrator: Writes the responses; its error rate is reached after the first fifth of the steps.
        num_digits: Digits of a problem, ≥ 1.
        batch_size: Demonstrations a step, ≥ 1.
        steps: Steps of the run.
        seed: Seeds problems and mistakes.
    """

    def __init__(self, demonstrator: Demonstrator, num_digits: int, batch_size: int, steps: int, seed: int) -> None:
        self.demonstrator = demonstrator
        self.num_digits = num_digits
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed

    def __iter__(self) -> Iterator[Example]:
        """Write the whole run's mini-batches, the same ones at every call."""
        rng = random.Random(derive_seed(self.seed, "digits", "demonstrations"))
        final = self.demonstrator
        for step in range(self.steps):
            rate = final.error_rate * min(1.0, step / max(_CLEAN_SHARE * self.steps, 1.0))
            writer = Demonstrator(rate, final.hesitation, final.max_tokens)
            yield self._batch(writer, rng)

    def _batch(self, writer: Demonstrator, rng: random.Random) -> Example:
        prompts, responses = [], []
        for _ in range(self.batch_size):
            digits = [rng.randrange(10) for _ in range(self.num_digits)]
            prompts.append([TOKEN_IDS[token] for token in (BOS, *prompt_text(digits).split())])
            responses.append([TOKEN_IDS[token] for token in writer.write(digits, rng)])
        width = max(map(len, responses))
        padding = [width - len(response) for response in responses]
        rows = list(zip(prompts, responses, padding, strict=True))
        return Example(
            input_ids=torch.tensor([p + r + [TOKEN_IDS[PAD]] * pad for p, r, pad in rows]),
            labels=torch.tensor([[_NO_LOSS] * len(p) + r + [_NO_LOSS] * pad for p, r, pad in rows]),
        )


class WarmStart(pl.LightningModule):
    """Next-token training on the responses of demonstrations; the prompt carries no loss.

    Args:
        policy: A Hugging Face causal language model.
        learning_rate: Peak of a schedule that rises over 50 steps and falls to 0 along a cosine.
        steps: Steps of the whole run.
    """

    def __init__(self, policy: Any, learning_rate: float, steps: int) -> None:
        super().__init__()
        self.policy = policy
        self.learning_rate = learning_rate
        self.steps = steps

    def training_step(self, batch: Example, batch_idx: int) -> Tensor:
        """Cross-entropy in nats, averaged over the response tokens of the mini-batch."""
        logits = self.policy(input_ids=batch.input_ids, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=_NO_LOSS)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> Any:
        """AdamW with warm-up and cosine."""
        optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=self.learning_rate, betas=(0.9, 0.98), weight_decay=0.01
        )

        def factor(step: int) -> float:
            return min(1.0, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / self.steps))

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def transfer_batch_to_device(self, batch: Example, device: torch.device, dataloader_idx: int) -> Example:
        """Move a mini-batch."""
        return Example(batch.input_ids.to(device), batch.labels.to(device))


def train_warm_start(
    demonstrator: Demonstrator,
    *,
    num_digits: int = 6,
    steps: int = 500,
    batch_size: int = 128,
    learning_rate: float = 3e-3,
    seed: int = 0,
    progress: bool = False,
) -> Any:
    """Train a policy from nothing, on one CPU thread: equal arguments give equal weights.

    Args:
        demonstrator: Writes what the policy learns to write.
        num_digits: Digits of a problem, ≥ 1.
        steps: Optimizer steps, ≥ 1.
        batch_size: Demonstrations a step, ≥ 1.
        learning_rate: Peak learning rate, > 0.
        seed: Seeds weights, problems and mistakes.
        progress: Show a progress bar.

    Returns:
        The trained ``LlamaForCausalLM``, in eval mode.

    Raises:
        InputError: A count is below 1.
    """
    for name, value in (("num_digits", num_digits), ("steps", steps), ("batch_size", batch_size)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    policy = build_policy(seed)
    data = Demonstrations(demonstrator, num_digits, batch_size, steps, seed)
    loader = DataLoader(data, batch_size=None, generator=torch.Generator().manual_seed(derive_seed(seed, "loader")))
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=progress,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums, and so the last digits, depend on the number of threads
    try:
        trainer.fit(WarmStart(policy, learning_rate, steps), loader)
    finally:
        torch.set_num_threads(threads)
    return policy.eval()
