"""What a DataModule does besides training: it has an engine answer benchmark problems and prompts."""

import logging
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from bapo_lightning.answering import Answer, AnswerRequest, answer
from bapo_lightning.deck import PromptDeck
from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark, UnfinishedAnswers
from bapo_lightning.models import Policy, weights_digest
from bapo_lightning.rewards import Reward
from bapo_lightning.rollout import RolloutEngine
from bapo_lightning.tasks import PromptSource, encode_prompt
from bapo_lightning.types import SamplingSettings, Sealed

if TYPE_CHECKING:
    from bapo_lightning.module import PolicyModule

log = logging.getLogger(__name__)

AnswerBatch = Sealed[list[AnswerRequest]]


class AnsweringDataModule(LightningDataModule):
    """Prompts, engine and reward of a run, and what validation, test and prediction do with them.

    Args:
        task: Where prompts come from.
        engine: What samples.
        reward: What scores responses.
        sampling: Temperature and token limit of responses to the task's prompts.
        max_prompt_tokens: Longer prompts are dropped and counted, never cut.
        seed: Seeds every draw of the run.
    """

    def __init__(
        self,
        task: PromptSource,
        engine: RolloutEngine,
        reward: Reward,
        sampling: SamplingSettings,
        max_prompt_tokens: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.task = task
        self.engine = engine
        self.reward = reward
        self.sampling = sampling
        self.max_prompt_tokens = max_prompt_tokens
        self.seed = seed
        self._attached_policy: Policy | None = None
        self.samples_beside_training = False
        """Whether the engine samples in another thread while the policy is trained."""
        self.benchmarks: list[Benchmark] = []
        """Filled by `AIMEEvaluation`; `bapo validate` and `bapo test` go through them."""
        self.answers_per_batch = 256
        """Responses handed to the engine at a time in evaluation; the engine cuts them into batches of its own."""
        self.unfinished_folder: Path | None = None
        """Where answers of evaluations under way are kept; None keeps none."""
        self.unfinished: list[UnfinishedAnswers | None] = []
        """One a benchmark, of the evaluation under way."""
        self.answers_before: list[list[Answer]] = []
        """One list a benchmark: answers that an evaluation which was stopped had given already."""

    @property
    def module(self) -> "PolicyModule":
        """The module that is trained; it holds the policy."""
        assert self.trainer is not None
        module: PolicyModule = self.trainer.lightning_module  # type: ignore[assignment]
        return module

    @cached_property
    def deck(self) -> PromptDeck:
        """The task's prompts, rendered and encoded once.

        Raises:
            InputError: The task cannot be read, no prompt fits, or the model has too few positions for the longest.
        """
        deck = PromptDeck.from_task(self.task, self.module.policy.tokenizer, self.max_prompt_tokens, self.seed)
        self._require_positions("data.sampling", self.sampling, deck.longest)
        self._require_one_pass(deck.longest + self.sampling.max_new_tokens)
        return deck

    def _require_one_pass(self, longest: int) -> None:
        """Refuse a limit of tokens that a response may outgrow after hours."""
        limit = self.module.micro_batch_tokens
        if limit is not None and limit < longest:
            raise InputError(
                f"model.micro_batch_tokens is {limit}, but a prompt with its response may have {longest} tokens (the "
                f"longest prompt and data.sampling.max_new_tokens); raise it to at least {longest}"
            )

    def _require_positions(self, key: str, sampling: SamplingSettings, longest_prompt: int) -> None:
        limit = self.module.policy.max_length
        if limit is not None and longest_prompt + sampling.max_new_tokens > limit:
            raise InputError(
                f"{key}: max_new_tokens = {sampling.max_new_tokens} after a prompt of {longest_prompt} tokens goes "
                f"beyond the {limit} positions of the model; at most {limit - longest_prompt} fit"
            )

    def sync_engine(self) -> int:
        """Bring the engine to the policy's weights and check that it says so.

        Returns:
            The version: policy updates so far.
        """
        assert self.trainer is not None
        version = self.module.updates_done
        if self._attached_policy is not self.module.policy:
            self.engine.attach(self.module.policy, beside_training=self.samples_beside_training)
            self._attached_policy = self.module.policy
        self.engine.sync_weights(version)
        if self.engine.version != version:
            raise RuntimeError(f"the rollout engine reports version {self.engine.version} after a sync to {version}")
        return version

    def val_dataloader(self) -> list[Iterable[AnswerBatch]]:
        """One loader a benchmark, this rank's share of the problems in it."""
        assert self.trainer is not None
        loaders: list[Iterable[AnswerBatch]] = []
        self.unfinished, self.answers_before = [], []
        for benchmark in self.benchmarks:
            longest = max(len(encode_prompt(self.module.policy.tokenizer, p)) for p in benchmark.problems())
            self._require_positions(f"benchmark {benchmark.name}", benchmark.sampling, longest)
            done = {answer.key for answer in self._look_for_earlier_answers(benchmark)}
            items = [
                AnswerRequest(prompt, sample_index, benchmark.sampling)
                for prompt, sample_index in benchmark.items(self.trainer.global_rank, self.trainer.world_size)
                if (prompt.id, sample_index) not in done
            ]
            loaders.append(self._batches(items))
        return loaders

    def _look_for_earlier_answers(self, benchmark: Benchmark) -> list[Answer]:
        """What an evaluation of these very weights that was stopped has left, of all ranks."""
        if self.unfinished_folder is None:
            self.unfinished.append(None)
            self.answers_before.append([])
            return []
        assert self.trainer is not None
        tokenizer = self.module.policy.tokenizer
        unfinished = UnfinishedAnswers(
            self.unfinished_folder,
            {
                "benchmark": benchmark.name,
                "settings": benchmark.settings(),
                "prompts": [(p.id, p.answer, encode_prompt(tokenizer, p)) for p in benchmark.problems()],
                "seed": self.seed,
                "engine": type(self.engine).__qualname__,
                "reward": self.reward.settings(),
                "precision": str(self.trainer.precision),
                "weights": weights_digest(self.module.policy),
            },
        )
        wanted = {(p.id, sample): AnswerRequest(p, sample, benchmark.sampling) for p, sample in benchmark.items()}
        answers = [Answer.unpack(record, wanted) for record in unfinished.load()]
        if answers and self.trainer.is_global_zero:
            log.warning("%s: going on after %d of %d answers", benchmark.name, len(answers), len(wanted))
        self.unfinished.append(unfinished)
        self.answers_before.append(answers)
        return answers

    def test_dataloader(self) -> list[Iterable[AnswerBatch]]:
        """The same as validation."""
        return self.val_dataloader()

    def predict_dataloader(self) -> Iterable[AnswerBatch]:
        """One response to each prompt of the task."""
        assert self.trainer is not None
        share = self.deck.prompts[self.trainer.global_rank :: self.trainer.world_size]
        items = [AnswerRequest(prompt=e.prompt, sample_index=0, sampling=self.sampling) for e in share]
        return self._batches(items)

    def answer(self, requests: list[AnswerRequest]) -> list[Answer]:
        """Sample and score the requests of one validation, test or prediction batch."""
        assert self.trainer is not None
        return answer(
            requests,
            engine=self.engine,
            reward=self.reward,
            seed=self.seed,
            precision=self.trainer.precision_plugin.forward_context(),
        )

    def _batches(self, requests: list[AnswerRequest]) -> Iterable[AnswerBatch]:
        return DataLoader(requests, batch_size=self.answers_per_batch, collate_fn=Sealed)  # type: ignore[arg-type]

    def teardown(self, stage: str) -> None:
        """Stop the reward's worker processes."""
        self.reward.close()
