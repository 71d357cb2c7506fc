"""Scores of repeated sampling: avg@k, pass@k, pass^k and maj@k."""

from collections import Counter
from math import comb

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation.keyed_metric import NO_ANSWER, KeyedMetric, Sample


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, hold a correct one (Chen et al. 2021).

    The estimate is unbiased. It is ``1 - C(n-c, k) / C(n, k)`` in exact integers, rounded once, so it does
    not lose digits at any n. ``pass_at_k(n, c, 1)`` is the mean ``c / n``.

    Args:
        n: Samples of the problem, at least 1.
        c: Correct ones among them, 0 … n.
        k: Samples drawn, 1 … n.

    Returns:
        A probability in [0, 1].

    Raises:
        InputError: A count is out of its range; k > n cannot be estimated.
    """
    _check_counts("pass@k", n, c, k)
    total = comb(n, k)
    return (total - comb(n - c, k)) / total


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Probability that k of n samples, drawn without replacement, are all correct (Yao et al. 2024, τ-bench).

    The estimate is unbiased: ``C(c, k) / C(n, k)``, in exact integers and rounded once.

    Args:
        n: Samples of the problem, at least 1.
        c: Correct ones among them, 0 … n.
        k: Samples drawn, 1 … n.

    Returns:
        A probability in [0, 1].

    Raises:
        InputError: A count is out of its range; k > n cannot be estimated.
    """
    _check_counts("pass^k", n, c, k)
    return comb(c, k) / comb(n, k)


def _check_counts(name: str, n: int, c: int, k: int) -> None:
    if n < 1:
        raise InputError(f"{name}: n must be at least 1, got {n}")
    if not 0 <= c <= n:
        raise InputError(f"{name}: c, the number of correct samples, must lie in 0 … n = {n}, got {c}")
    if not 1 <= k <= n:
        raise InputError(f"{name}: k must lie in 1 … n = {n}, got {k}")


class AverageAtK(KeyedMetric):
    """avg@k: share of correct samples among the first k of each problem, averaged over problems.

    Missing verdicts are left out of their problem's share. See `KeyedMetric` for ``update``.

    Args:
        k: Samples per problem, at least 1; a problem with fewer is refused, further samples are not looked
            at.
        **kwargs: What every `torchmetrics.Metric` takes.
    """

    def _score(self, samples: list[Sample]) -> float | None:
        verdicts = [verdict for verdict, _ in samples[: self.k] if verdict is not None]
        return sum(verdicts) / len(verdicts) if verdicts else None


class PassAtK(KeyedMetric):
    """pass@k: the unbiased `pass_at_k` over all samples of each problem, averaged over problems.

    Missing verdicts are left out. When they leave fewer than k samples, all that remain are drawn, so the
    problem counts as solved if any of them is correct: a lower bound. See `KeyedMetric` for ``update``.

    Args:
        k: Samples drawn, at least 1; a problem with fewer samples is refused.
        **kwargs: What every `torchmetrics.Metric` takes.
    """

    def _score(self, samples: list[Sample]) -> float | None:
        verdicts = [verdict for verdict, _ in samples if verdict is not None]
        return pass_at_k(len(verdicts), sum(verdicts), min(self.k, len(verdicts))) if verdicts else None


class PassHatK(KeyedMetric):
    """pass^k: the unbiased `pass_hat_k` over all samples of each problem, averaged over problems.

    Missing verdicts are left out. When they leave fewer than k samples, all that remain are drawn: an upper bound. See
    `KeyedMetric` for ``update``.

    Args:
        k: Samples drawn, at least 1; a problem with fewer samples is refused.
        **kwargs: What every `torchmetrics.Metric` takes.
    """

    def _score(self, samples: list[Sample]) -> float | None:
        verdicts = [verdict for verdict, _ in samples if verdict is not None]
        return pass_hat_k(len(verdicts), sum(verdicts), min(self.k, len(verdicts))) if verdicts else None


class MajorityAtK(KeyedMetric):
    """maj@k: is the most frequent answer among the first k samples correct (Wang et al. 2022)?

    Answers are compared as text, so give them in normal form (the extracted answer). A sample without an
    answer has no vote, and neither has one with a missing verdict. Answers that share the lead share the
    score: two, one of them correct, give 0.5, the mean over random tie-breaks, so the order of the samples
    does not matter. If the verdicts on equal answers differ, their mean is taken. Without any vote the
    problem counts as wrong, unless all its verdicts are missing. See `KeyedMetric` for ``update``, which
    needs ``answers`` here.

    Args:
        k: Samples that vote, at least 1; a problem with fewer is refused, further samples are not looked at.
        **kwargs: What every `torchmetrics.Metric` takes.
    """

    def _score(self, samples: list[Sample]) -> float | None:
        scored = [(verdict, answer) for verdict, answer in samples[: self.k] if verdict is not None]
        if not scored:
            return None
        votes = Counter(answer for _, answer in scored if answer != NO_ANSWER)
        if not votes:
            if any(verdict for verdict, _ in scored):
                raise InputError("MajorityAtK: a correct sample has no answer; pass answers to update()")
            return 0.0
        most = max(votes.values())
        leaders = [answer for answer, count in votes.items() if count == most]
        return sum(_share_correct(scored, leader) for leader in leaders) / len(leaders)


def _share_correct(scored: list[tuple[bool, int]], answer: int) -> float:
    verdicts = [verdict for verdict, given in scored if given == answer]
    return sum(verdicts) / len(verdicts)
