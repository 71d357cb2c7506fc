"""scripts/crash_test.py itself, short: three kills of a tiny run."""

import os
import subprocess
import sys
from pathlib import Path

from command import TESTS, write_config

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/crash_test.py"


def crash_test(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=400
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_killed_three_times_is_the_undisturbed_run(model_folder, tmp_path):
    data = {"rollout": {"token_budget": 2, "overlap": True}, "groups_per_phase": 8}
    config = write_config(tmp_path, model_folder(), data=data)
    code, output = crash_test("--config", config, "--updates", 60, "--kills", 3, "--folder", tmp_path / "out")
    assert code == 0, output
    assert output.count("kill ") == 3
    assert "every update, every prompt, every curve and every weight" in output


def test_a_run_that_is_not_the_same_is_found_out(model_folder, tmp_path):
    """The comparison can fail: another seed is another run."""
    sys.path.insert(0, str(SCRIPT.parent))
    from crash_test import Run, differences

    config = write_config(tmp_path, model_folder())
    runs = []
    for name, seed in (("straight", 0), ("killed", 1)):
        run = Run(name, tmp_path, ["--config", str(config), f"--seed_everything={seed}"], 4)
        os.environ["PYTHONPATH"] = str(TESTS)
        assert run.finish(), run.output.read_text()
        runs.append(run)
    found = differences(*runs)
    assert any("trained on other responses" in line for line in found)
    assert any("weights differ" in line for line in found)
