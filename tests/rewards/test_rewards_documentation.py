"""Every row and every code block of docs/rewards.md holds."""

import re
from pathlib import Path

import pytest

from bapo_lightning.rewards import MathReward

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "rewards.md"
ROW = re.compile(r"\| (?P<rule>[^|`]+) \| `(?P<gold>[^|`]*)` \| `(?P<response>[^|`]*)` \| `(?P<status>\w+)` \|")


def _tables() -> dict[str, list[dict[str, str]]]:
    tables: dict[str, list[dict[str, str]]] = {"Rule": [], "Rule, with thinking": []}
    current = "Rule"
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        if line.startswith("| Rule"):
            current = line.split("|")[1].strip()
        elif row := ROW.fullmatch(line):
            tables[current].append(row.groupdict())
    return tables


@pytest.mark.parametrize(("table", "think_tags"), [("Rule", None), ("Rule, with thinking", ("<think>", "</think>"))])
def test_every_documented_example_scores_as_documented(table, think_tags):
    rows = _tables()[table]
    reward = MathReward(think_tags=think_tags, num_workers=1)
    scores = reward.score([row["response"] for row in rows], [row["gold"] for row in rows])
    reward.close()
    different = [(row, score) for row, score in zip(rows, scores, strict=True) if score.status != row["status"]]
    assert different == []


def test_all_rows_are_read():
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    statuses = ("`correct` |", "`wrong` |", "`no_answer` |", "`bad_gold` |")
    written = [line for line in lines if line.endswith(statuses) and line.count("|") == 5]
    assert sum(len(rows) for rows in _tables().values()) == len(written) > 60


def test_code_blocks_run():
    for block in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, str(DOCUMENT), "exec"), {})
