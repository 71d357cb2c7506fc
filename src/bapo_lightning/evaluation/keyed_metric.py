"""The state all scores share: one row per (problem, sample), whatever rank it came from and however often."""

import hashlib
import operator
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.distributed import gather_all_tensors

from bapo_lightning.errors import InputError

Verdict = bool | int | float | None
"""1 or True: correct; 0 or False: wrong; None or NaN: missing (the reward could not be computed)."""

NO_ANSWER = -1
"""Stands for an answer that was not given or not found; hashes are never negative."""

_MISSING = -1
_NUM_COLUMNS = 4


class KeyedMetric(Metric):
    """A score over problems, each sampled several times, with every sample counted once.

    A row is (problem, sample index, verdict, answer), kept as int64 so that ranks with different numbers of
    rows, or none, can be gathered. Rows of the same problem and sample index are one sample: padding a rank
    with repeated problems, or evaluating a sample on two ranks, changes nothing. ``compute()`` averages over
    problems, each problem having the same weight, and is NaN when there is nothing to average.

    A missing verdict (timeout, error) is left out of its problem's mean and counted in `coverage`. A problem
    with no verdict at all is left out of the average.

    All ranks call ``compute()`` together, those without rows too.

    Args:
        k: Samples per problem that the score speaks of, at least 1.
        **kwargs: What every `torchmetrics.Metric` takes.
    """

    is_differentiable = False
    higher_is_better = True
    # `forward` then scores its batch with a second `update` on an empty state, which running indices need.
    full_state_update = True
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    entries: list[Tensor]

    def __init__(self, k: int, **kwargs: Any) -> None:
        if k < 1:
            raise InputError(f"{type(self).__name__}: k must be at least 1, got {k}")
        # Torchmetrics stands in an empty float tensor for a rank that has no rows; gathered beside int64 it
        # would be read as garbage.
        kwargs.setdefault("dist_sync_fn", _gather_int64)
        # A rank that got no rows since the last call must not answer from its cache while the others gather.
        kwargs.setdefault("compute_with_cache", False)
        super().__init__(**kwargs)
        self.k = int(k)
        self.add_state("entries", default=[], dist_reduce_fx="cat")

    def update(
        self,
        problem_ids: Sequence[int | str] | Tensor,
        correct: Sequence[Verdict] | Sequence[Sequence[Verdict]] | Tensor,
        sample_indices: Sequence[int] | Tensor | None = None,
        answers: Sequence[str | None] | None = None,
    ) -> None:
        """Add the verdicts on some samples; empty sequences are welcome.

        Args:
            problem_ids: N ids, integers or strings; ``1`` and ``"1"`` are different problems.
            correct: N verdicts: True or 1, False or 0, None or NaN for missing. Or N rows of verdicts, one
                row holding all samples of its problem.
            sample_indices: N positions of the samples in their problems, from 0. Without them samples are
                numbered as they come, per problem and on each rank by itself, so all samples of a problem
                must then come to one rank.
            answers: N answers found in the responses, None where none was found; only the majority needs
                them.

        Raises:
            InputError: Lengths differ, or a verdict is none of the above.
        """
        problems = [_hash(i) for i in _plain(problem_ids)]
        verdicts = _plain(correct)
        if any(isinstance(row, list | tuple) for row in verdicts):
            _require_length("correct", verdicts, problems)
            if sample_indices is not None or answers is not None:
                raise InputError("correct: rows of verdicts go without sample_indices and answers")
            problems = [problem for problem, row in zip(problems, verdicts, strict=True) for _ in row]
            verdicts = [verdict for row in verdicts for verdict in row]
        _require_length("correct", verdicts, problems)
        indices = self._next_indices(problems) if sample_indices is None else _plain(sample_indices)
        _require_length("sample_indices", indices, problems)
        votes = [None] * len(problems) if answers is None else list(answers)
        _require_length("answers", votes, problems)
        if problems:
            rows = [
                (problem, int(index), _verdict(verdict), NO_ANSWER if vote is None else _hash(str(vote)))
                for problem, index, verdict, vote in zip(problems, indices, verdicts, votes, strict=True)
            ]
            self.entries.append(torch.tensor(rows, dtype=torch.int64, device=self.device).reshape(-1))

    def compute(self) -> Tensor:
        """Average over problems.

        Returns:
            A float32 scalar in [0, 1]; NaN without any verdict.

        Raises:
            InputError: A problem has fewer samples than k, or one sample has two verdicts.
        """
        scores = self.problem_scores()
        mean = sum(scores) / len(scores) if scores else float("nan")
        return torch.tensor(mean, dtype=torch.float32, device=self.device)

    def problem_scores(self) -> list[float]:
        """The score of each problem that has a verdict, in order of first appearance; of this rank's samples.

        Raises:
            InputError: As `compute`.
        """
        problems = self._problems()
        if (fewest := min(map(len, problems), default=self.k)) < self.k:
            raise InputError(
                f"{type(self).__name__}: k={self.k}, but a problem has only {fewest} samples; sample more or "
                "choose a smaller k"
            )
        return [score for samples in problems if (score := self._score(samples)) is not None]

    def coverage(self) -> dict[str, int]:
        """Count what the score rests on, over all ranks; all ranks call it together.

        Returns:
            ``problems``, ``samples`` and ``missing`` (samples without a verdict), each sample counted once.
        """
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self.sync_on_compute):
            problems = self._problems()
        return {
            "problems": len(problems),
            "samples": sum(len(samples) for samples in problems),
            "missing": sum(verdict is None for samples in problems for verdict, _ in samples),
        }

    def merge_state(self, incoming_state: "dict[str, Any] | Metric") -> None:
        """Add the rows of another metric or state; samples in both count once."""
        state = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        self.entries.extend(entry.to(self.device) for entry in _as_list(state["entries"]))
        self._computed = None
        self._update_count += 1

    @abstractmethod
    def _score(self, samples: "list[Sample]") -> float | None:
        """Score of one problem in [0, 1]; None when its verdicts are all missing."""

    def _problems(self) -> "list[list[Sample]]":
        """The samples of each problem, in order of sample index, each once."""
        table: dict[int, dict[int, Sample]] = {}
        for problem, index, verdict, answer in self._rows():
            sample = (None if verdict == _MISSING else bool(verdict), answer)
            known = table.setdefault(problem, {}).setdefault(index, sample)
            if known[0] is None:
                table[problem][index] = sample
            elif sample[0] is not None and known[0] != sample[0]:
                raise InputError(
                    f"{type(self).__name__}: sample {index} of a problem has two verdicts; give "
                    "sample_indices that are unique over all ranks"
                )
        return [[samples[index] for index in sorted(samples)] for samples in table.values()]

    def _rows(self) -> list[list[int]]:
        entries = _as_list(self.entries)
        return torch.cat(entries).reshape(-1, _NUM_COLUMNS).tolist() if entries else []

    def _next_indices(self, problems: list[int]) -> list[int]:
        following: dict[int, int] = {}
        for problem, index, _, _ in self._rows():
            following[problem] = max(following.get(problem, 0), index + 1)
        indices = []
        for problem in problems:
            indices.append(following.get(problem, 0))
            following[problem] = indices[-1] + 1
        return indices


Sample = tuple[bool | None, int]
"""Verdict (None: missing) and the hash of the answer, or NO_ANSWER."""


def _gather_int64(tensor: Tensor, group: Any = None) -> list[Tensor]:
    return gather_all_tensors(tensor.reshape(-1).to(torch.int64), group)


def _as_list(state: Tensor | list[Tensor]) -> list[Tensor]:
    # After a sync the list has become one tensor.
    return [state] if isinstance(state, Tensor) else list(state)


def _plain(values: Iterable[Any] | Tensor) -> list[Any]:
    return values.tolist() if isinstance(values, Tensor) else list(values)


def _require_length(name: str, values: Sequence[Any], problems: Sequence[int]) -> None:
    if len(values) != len(problems):
        raise InputError(f"{name} has {len(values)} entries but problem_ids has {len(problems)}")


def _verdict(value: Any) -> int:
    if value is None or value != value:
        return _MISSING
    if value not in (0, 1):
        raise InputError(f"correct must hold True, False, 1, 0, or None or NaN for missing; got {value!r}")
    return int(value)


def _hash(key: Any) -> int:
    """Map an integer or a text to [0, 2**63), equally on every rank."""
    text = str(key) if isinstance(key, str) else operator.index(key)
    digest = hashlib.blake2b(repr(text).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
