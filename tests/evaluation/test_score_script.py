"""scripts/score.py: responses made elsewhere, graded here."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/score.py"


def score(*arguments):
    done = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_numbers_by_hand(tmp_path):
    """Two problems of four samples, 2 and 0 right: avg .25; pass@2 = (1 - C(2,2)/C(4,2)) / 2 = 5/12; maj right once."""
    texts = {
        "a": ["\\boxed{016}", "so \\boxed{16}.", "\\boxed{17}", "no idea"],
        "b": ["\\boxed{1}", "\\boxed{2}", "\\boxed{2}", "\\boxed{"],
    }
    golds = {"a": 16, "b": "3"}
    rows = [{"id": p, "text": t, "gold": golds[p]} for p, all_texts in texts.items() for t in all_texts]
    path = write(tmp_path / "theirs.jsonl", rows)
    out = tmp_path / "verdicts.jsonl"
    code, printed, said = score(path, "--response", "text", "--answer", "gold", "--problem", "id", "--out", out)
    assert code == 0, said
    lines = printed.splitlines()
    assert lines[0] == "2 problems, 8 responses, k = 4"
    assert lines[1].split() == ["avg@4", "0.2500"]
    assert ["pass@2", "0.4167"] in [line.split() for line in lines]
    assert ["pass@4", "0.5000"] in [line.split() for line in lines]
    assert ["maj@4", "0.5000"] in [line.split() for line in lines]
    assert lines[-1] == "statuses wrong 4, correct 2, no_answer 2"
    verdicts = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [v["extracted"] for v in verdicts[:4]] == ["16", "16", "17", None]


def test_mistakes_name_file_and_line(tmp_path):
    path = write(
        tmp_path / "theirs.jsonl", [{"problem": "p", "response": "x", "answer": "1"}, {"problem": "p", "respons": "x"}]
    )
    code, _, said = score(path)
    assert code == 2
    assert "theirs.jsonl:2: no field 'response'; did you mean 'respons'?" in said
    assert "Traceback" not in said
    code, _, said = score(tmp_path / "none.jsonl")
    assert code == 2
    assert "does not exist" in said
