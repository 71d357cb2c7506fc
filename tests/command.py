"""Running `bapo` in this process and in processes of its own."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent


def write_config(folder: Path, model_folder: Path, name: str = "config.yaml", **changes) -> Path:
    """A small, complete config: 2 phases of 2 updates on the counting task."""
    config = {
        "model": {
            "policy": {"path": str(model_folder)},
            "clipping": {"class_path": "FixedClip", "init_args": {"low": 0.8, "high": 1.2}},
            "optimizer": {"class_path": "torch.optim.AdamW", "init_args": {"lr": 1e-2}},
        },
        "data": {
            "task": {"class_path": "counting_task.CountingTask"},
            "reward": {"class_path": "counting_task.EvenLength"},
            "sampling": {"max_new_tokens": 6},
            "group_size": 4,
            "groups_per_phase": 4,
            "groups_per_update": 2,
        },
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "max_epochs": 2,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": {"init_args": {"save_dir": str(folder / "runs"), "name": "test"}},
        },
    }
    for key, value in changes.items():
        config[key] = {**config.get(key, {}), **value}
    path = folder / name
    path.write_text(yaml.safe_dump(config))
    return path


def start(*arguments: object, **settings) -> subprocess.Popen:
    """Start `bapo` in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "bapo_lightning.cli", *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings
    )


def finish(process: subprocess.Popen, timeout: float = 240) -> tuple[int, str]:
    """Wait for a process; its exit code and output."""
    try:
        output, _ = process.communicate(timeout=timeout)
    finally:
        process.kill()
    return process.returncode, output
