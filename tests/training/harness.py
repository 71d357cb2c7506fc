"""Batches, modules and trainers that the tests of the loop share."""

from pathlib import Path

import torch
from lightning.pytorch import Trainer

from bapo_lightning.models import Policy
from bapo_lightning.module import PolicyModule
from bapo_lightning.types import Completion, Prompt, Sealed, TokenBatch, Trajectory


def random_batch(*, responses=6, seed=0, missing=(), dtype=torch.float32) -> TokenBatch:
    """Off-policy responses of 0 … 7 tokens; behaviour log-probs near those of a random model."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low, high, count):
        return torch.randint(low, high, (count,), generator=generator).tolist()

    lengths = [0, 7, *draw(1, 7, responses - 2)]
    trajectories = []
    for i, length in enumerate(lengths[:responses]):
        log_probs = (-torch.rand(length, generator=generator) * 4).tolist()
        completion = Completion(tuple(draw(3, 60, length)), tuple(log_probs), (0,) * length, "stop")
        trajectories.append(
            Trajectory(
                prompt=Prompt(str(i), "", ""),
                prompt_ids=tuple(draw(3, 60, 1 + i % 3)),
                completion=completion,
                group_id=i // 2,
                sample_index=i % 2,
                sampled_version=0,
                reward=None if i in missing else float(i % 2),
                advantage=[0.9, -1.1, 0.3, -0.4, 1.3, -0.7][i % 6],
            )
        )
    batch = TokenBatch.from_trajectories(trajectories, pad_id=2, temperature=0.8, length_limit=8)
    if dtype == torch.float64:
        batch = TokenBatch(
            **{
                **vars(batch),
                "rollout_log_probs": batch.rollout_log_probs.double(),
                "advantages": batch.advantages.double(),
            }
        )
    return batch


class Batches:
    """A sized loader over given batches."""

    def __init__(self, batches):
        self.batches = list(batches)

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return (Sealed(batch) for batch in self.batches)


def sgd(learning_rate):
    """An optimizer whose step is the gradient, scaled."""
    return lambda parameters: torch.optim.SGD(parameters, lr=learning_rate)


def make_module(folder: Path, *, dtype=torch.float32, **settings) -> PolicyModule:
    module = PolicyModule(Policy(str(folder)), **{"optimizer": sgd(0.1), "max_grad_norm": None, **settings})
    module.configure_model()
    module.policy.to(dtype)
    if module.reference is not None:
        module.reference.to(dtype)
    return module


def fit(module: PolicyModule, batches, **settings) -> Trainer:
    trainer = Trainer(
        **{
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
            **settings,
        }
    )
    trainer.fit(module, train_dataloaders=Batches(batches))
    return trainer


def weights(module: PolicyModule) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.policy.named_parameters()}
