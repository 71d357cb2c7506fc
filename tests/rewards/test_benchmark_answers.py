"""The golds of four benchmarks: accepted however they are usually written, and no other answer in their place."""

import json
import random
import re

import pytest

from bapo_lightning.rewards import MathReward

BENCHMARKS = ("aime24", "aime25", "amc2023", "math500")
WAYS = {
    "at the end": lambda gold: f"So the answer is \\boxed{{{gold}}}",
    "in dollars": lambda gold: f"Therefore $\\boxed{{{gold}}}$.",
    "displayed, with text after it": lambda gold: f"Thus\n\\[\n\\boxed{{{gold}}}\n\\]\nwhich completes the solution.",
    "with spaces": lambda gold: f"\\boxed{{ {gold} }}",
    "under a heading": lambda gold: f"**Final Answer**\n\n\\boxed{{{gold}}}\n",
    "in Markdown's bold": lambda gold: f"The answer is **$\\boxed{{{gold}}}$**.",
    "in LaTeX's bold": lambda gold: f"\\boxed{{\\mathbf{{{gold}}}}}",
    "with large fractions": lambda gold: "\\boxed{" + gold.replace("\\frac", "\\dfrac") + "}",
    "in display style": lambda gold: f"\\boxed{{\\displaystyle {gold}}}",
    "in a frame": lambda gold: f"$\\fbox{{{gold}}}$",
    "after an answer that was withdrawn": lambda gold: f"At first \\boxed{{123456}}, but no: \\boxed{{{gold}}}",
    "with dollars inside": lambda gold: f"\\boxed{{${gold}$}}",
    "with a full stop": lambda gold: f"\\boxed{{{gold}.}}",
    "with a unit": lambda gold: f"\\boxed{{{gold}\\text{{ units}}}}" if re.fullmatch(r"\d+", gold) else None,
    "as an equation": lambda gold: f"\\boxed{{n = {gold}}}" if re.fullmatch(r"-?\d+", gold) else None,
}


@pytest.fixture(scope="module")
def golds(shared_dir):
    """Benchmark → its different golds."""
    lines = {name: (shared_dir / "data" / f"{name}.jsonl").read_text(encoding="utf-8") for name in BENCHMARKS}
    return {
        name: list(dict.fromkeys(json.loads(line)["answer"] for line in text.splitlines()))
        for name, text in lines.items()
    }


@pytest.fixture(scope="module")
def reward():
    shared = MathReward(num_workers=2, timeout_seconds=30.0)
    yield shared
    shared.close()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_golds_are_accepted_however_they_are_written(reward, golds, name):
    """At least 99.5 % for each benchmark, all of them for integers."""
    written = [(way, gold, make(gold)) for gold in golds[name] for way, make in WAYS.items() if make(gold) is not None]
    scores = reward.score([text for _, _, text in written], [gold for _, gold, _ in written])
    refused = [(way, gold, s.status) for (way, gold, _), s in zip(written, scores, strict=True) if s.value != 1.0]
    assert len(written) >= 12 * len(golds[name])
    assert len(refused) <= 0.005 * len(written), refused
    assert [gold for _, gold, _ in refused if re.fullmatch(r"-?\d+", gold)] == []


def near_misses(number):
    """Off by one and more, the other sign, two neighbouring digits swapped."""
    digits = str(abs(number))
    swapped = [int(digits[:i] + digits[i + 1] + digits[i] + digits[i + 2 :]) for i in range(len(digits) - 1)]
    found = {number + 1, number - 1, -number, 10 * number, number + 10, number + 100, 2 * number, *swapped}
    return sorted(found - {number})


def test_no_other_answer_is_accepted(reward, golds):
    """10,000 wrong answers, from other problems of the same benchmark or near the gold; not one is accepted."""
    rng = random.Random(0)
    wrong = []
    for name in BENCHMARKS:
        integers = [gold for gold in golds[name] if re.fullmatch(r"-?\d+", gold)]
        wrong += [(gold, str(miss)) for gold in integers for miss in near_misses(int(gold))]
        others = [(gold, other) for gold in golds[name] for other in golds[name] if plain(gold) != plain(other)]
        rng.shuffle(others)
        wrong += others[:7000] if name == "math500" else others
    wrong = wrong[:10_000] if len(wrong) > 10_000 else wrong
    assert len(wrong) == 10_000
    scores = reward.score([f"The answer is $\\boxed{{{other}}}$." for _, other in wrong], [gold for gold, _ in wrong])
    accepted = [pair for pair, score in zip(wrong, scores, strict=True) if score.value != 0.0]
    assert accepted == []


def plain(gold):
    """One spelling for golds that are the same: separators, short fractions, a name before the value, a unit after."""
    gold = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", gold.replace(" ", "").replace("\\!", ""))
    gold = re.sub(r"(\d)\\(?:mbox|text){[a-z. ]+}(?:\^2)?$", r"\1", re.sub(r"^[a-z]=", "", gold))
    return gold.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+", gold) else gold
