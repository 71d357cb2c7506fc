"""Grade responses that were made elsewhere, with this project's rules, so that published numbers can be checked.

    python scripts/score.py RESPONSES.jsonl --response response --answer answer --problem problem

Each line is one response with its gold answer; lines with one problem are its samples. Prints avg@k with
its 95 % intervals, pass@k for every power of two up to k, maj@k, and the statuses; --out writes every verdict as a JSON
line. Exit code 2 for a mistake in the file.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import AverageAtK, MajorityAtK, PassAtK
from bapo_lightning.evaluation.intervals import problem_interval, sampling_interval
from bapo_lightning.records import read_field, read_jsonl
from bapo_lightning.rewards import MathReward
from bapo_lightning.types import Score


def read_rows(options: argparse.Namespace) -> list[dict[str, object]]:
    """Problem, response, gold and finish reason of every line."""
    rows = []
    for line, row in read_jsonl(options.path):
        where = f"{options.path}:{line}"
        response, answer = (read_field(row, field, where) for field in (options.response, options.answer))
        if not isinstance(response, str):
            raise InputError(f"{where}: {options.response} must be a text, got {response!r}")
        if not isinstance(answer, str | int | float):
            raise InputError(f"{where}: {options.answer} must be a text or a number, got {answer!r}")
        problem = str(read_field(row, options.problem, where))
        reason = row.get(options.finish_reason, "") if options.finish_reason else ""
        rows.append({"problem": problem, "response": response, "answer": str(answer), "finish_reason": reason})
    return rows


def report(rows: list[dict[str, object]], scores: list[Score]) -> list[str]:
    """The lines of the table."""
    problems = [str(row["problem"]) for row in rows]
    counts = Counter(problems)
    k = min(counts.values())
    verdicts = [None if score.is_missing else score.status == "correct" for score in scores]
    answers = [score.extracted for score in scores]
    lines = [f"{len(counts)} problems, {len(rows)} responses, k = {k}"]
    if max(counts.values()) > k:
        lines.append(
            f"some problems have more responses (up to {max(counts.values())}); avg@k and maj@k use the first {k}"
        )

    def value(metric) -> float:
        metric.update(problems, verdicts, None, answers)
        return float(metric.compute())

    average = AverageAtK(k)
    lines.append(f"avg@{k}   {value(average):.4f}")
    over_problems = problem_interval(average.problem_scores())
    if over_problems is not None:
        lines.append(
            f"         [{over_problems.low:.4f}, {over_problems.high:.4f}] on other problems of the kind (95 %)"
        )
    known = [(p, v) for p, v in zip(problems, verdicts, strict=True) if v is not None]
    scored = Counter(p for p, _ in known)
    correct = Counter(p for p, v in known if v)
    over_samples = sampling_interval([correct[p] for p in scored], [scored[p] for p in scored])
    if over_samples is not None:
        lines.append(f"         [{over_samples.low:.4f}, {over_samples.high:.4f}] with other samples of these (95 %)")
    lines += [f"pass@{n}  {value(PassAtK(n)):.4f}" for n in (2**i for i in range(1, 20)) if n <= k]
    if k > 1:
        lines.append(f"maj@{k}   {value(MajorityAtK(k)):.4f}")
    statuses = Counter(score.status for score in scores)
    lines.append("statuses " + ", ".join(f"{status} {count}" for status, count in statuses.most_common()))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--response", default="response", help="field of the response (default: %(default)s)")
    parser.add_argument("--answer", default="answer", help="field of the gold answer (default: %(default)s)")
    parser.add_argument("--problem", default="problem", help="field that is equal for samples of one problem")
    parser.add_argument("--finish-reason", help="field that says 'length' where the token limit was reached")
    parser.add_argument("--think-tags", nargs=2, metavar=("OPEN", "CLOSE"), help="read only what follows the thought")
    parser.add_argument("--no-plain-text", action="store_true", help="boxed answers only")
    parser.add_argument("--out", type=Path, help="write every verdict to this JSONL file")
    options = parser.parse_args()
    reward = None
    try:
        tags = tuple(options.think_tags) if options.think_tags else None
        reward = MathReward(think_tags=tags, plain_text=not options.no_plain_text)
        rows = read_rows(options)
        scores = reward.score(
            [str(r["response"]) for r in rows],
            [str(r["answer"]) for r in rows],
            [str(r["finish_reason"]) for r in rows],
        )
        print("\n".join(report(rows, scores)))
        if options.out is not None:
            records = (
                {"problem": r["problem"], "answer": r["answer"], "extracted": s.extracted, "status": s.status}
                for r, s in zip(rows, scores, strict=True)
            )
            options.out.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")
    except InputError as error:
        print(f"score: error: {error}", file=sys.stderr)
        return 2
    finally:
        if reward is not None:
            reward.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
