"""How many answers a second `MathReward` judges: strict integers, math-verify, and a batch with hostile answers in it.

    python benchmarks/rewards.py

Rates are of one process and its workers, by the clock of this machine; the ratio to reading each response once with a
plain regular expression, in the same run, says how much the rules cost. The last part takes 2,048 answers of which 5 %
try to hang or blow up the comparison, and prints the time next to the bound that limits promise.
"""

import argparse
import random
import re
import time
from collections import Counter

from bapo_lightning.rewards import MathReward

HOSTILE = (
    "10^{10^{10}}",
    "9^{9^{9^{9}}}",
    "(10^{9})!",
    "{" * 5000 + "1" + "}" * 5000,
    "\\sqrt{" * 400 + "2" + "}" * 400,
    "\\frac{1}{" * 300 + "2" + "}" * 300,
    "\x00\x1b[31m\ud800",
    "__import__('os').system('true')",
    "x" * 20_000,
    "\\int_0^{10^{100}} e^{x^{x}} dx",
)
PLAIN = re.compile(r"\\boxed\{(\d+)\}")


def thought(rng: random.Random, num_chars: int) -> str:
    """Prose with some math in it, as a reasoning response has."""
    words = "we find that the sum of $x^2$ and {a} is at most $\\frac{1}{2}$ so that".split()
    return " ".join(rng.choices(words, k=num_chars // 5))


def rate(reward: MathReward, responses: list[str], golds: list[str]) -> tuple[float, Counter[str]]:
    """Responses a second, and how they were judged."""
    started = time.perf_counter()
    scores = reward.score(responses, golds, ["stop"] * len(responses))
    return len(responses) / (time.perf_counter() - started), Counter(score.status for score in scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4000, help="responses of the strict part")
    parser.add_argument("--num-workers", type=int, default=2)
    options = parser.parse_args()
    rng = random.Random(0)
    reward = MathReward(num_workers=options.num_workers)

    print("strict integers (AIME style), one process")
    print(f"{'characters':>12}  {'responses/s':>12}  {'of a plain regex':>16}")
    for num_chars in (300, 3_000, 10_000, 30_000):
        responses = [
            f"{thought(rng, num_chars)}\n\n**Final answer:** $\\boxed{{{i % 1000:03d}}}$" for i in range(options.count)
        ]
        golds = [str(rng.randrange(1000)) for _ in responses]
        found, _ = rate(reward, responses, golds)
        started = time.perf_counter()
        for response, gold in zip(responses, golds, strict=True):
            boxes = PLAIN.findall(response)
            _ = bool(boxes) and int(boxes[-1]) == int(gold)
        plain = len(responses) / (time.perf_counter() - started)
        print(f"{num_chars:>12}  {found:>12.0f}  {found / plain:>15.2f}x")

    expressions = [rf"\frac{{{i + 1}}}{{{i % 7 + 2}}} + \sqrt{{{i + 2}}}" for i in range(256)]
    reward.score([f"\\boxed{{{expressions[0]}}}"], [expressions[1]])  # starts the workers
    found, _ = rate(reward, [f"\\boxed{{{e}}}" for e in expressions], expressions[::-1])
    print(f"\nexpressions, math-verify in {options.num_workers} workers: {found:.0f} responses/s")

    answers = [rng.choice(HOSTILE) if i % 20 == 0 else rng.choice(expressions[:40]) for i in range(1024)]
    answers += [rng.choice(HOSTILE) if i % 20 == 0 else str(rng.randrange(1000)) for i in range(1024)]
    golds = [rng.choice(expressions[:40]) for _ in range(1024)] + [str(rng.randrange(1000)) for _ in range(1024)]
    started = time.perf_counter()
    _, statuses = rate(reward, [f"{thought(rng, 1000)} \\boxed{{{a}}}" for a in answers], golds)
    seconds = time.perf_counter() - started
    slow = statuses["timeout"] + statuses["error"]
    bound = 5.0 * slow / options.num_workers + 60.0
    print(
        f"mixed batch of 2,048, 5 % hostile: {seconds:.1f} s "
        f"({', '.join(f'{s} {n}' for s, n in statuses.most_common())});"
        f"\n  bound: {slow} that could not be compared x 5 s / {options.num_workers} workers + 60 s = {bound:.0f} s"
    )
    reward.close()


if __name__ == "__main__":
    main()
