"""A short quickstart that fails unless training raised the success rate.

The curve is read back from the TensorBoard event file of the run, the way a person would see it.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

REPOSITORY = Path(__file__).resolve().parents[1]


def train(config: Path, phases: int, folder: Path, more: list[str]) -> None:
    """Run ``bapo fit`` on a config for a number of rollout phases; the run lies in ``folder``."""
    command = [sys.executable, "-m", "bapo_lightning.cli", "fit", f"--config={config}"]
    command += [f"--trainer.max_epochs={phases}", f"--trainer.logger.init_args.save_dir={folder}"]
    command += ["--trainer.enable_progress_bar=false", *more]
    subprocess.run(command, cwd=REPOSITORY, check=True)


def read_curve(folder: Path, tag: str) -> list[float]:
    """All values of a tag, by update, of the one run below ``folder``."""
    events = list(folder.rglob("events.out.tfevents.*"))
    if len(events) != 1:
        raise SystemExit(f"smoke: one TensorBoard event file was expected below {folder}, there are {len(events)}")
    accumulator = EventAccumulator(str(events[0]), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    if tag not in tags:
        raise SystemExit(f"smoke: the run wrote no {tag}; it wrote: {', '.join(sorted(tags)) or 'nothing'}")
    return [point.value for point in sorted(accumulator.Scalars(tag), key=lambda point: point.step)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="Arguments not listed are passed on to bapo fit.")
    parser.add_argument("--config", type=Path, default=REPOSITORY / "configs" / "quickstart.yaml")
    parser.add_argument("--phases", type=int, default=12, help="rollout phases to train, at least 4 (default 12)")
    parser.add_argument("--margin", type=float, default=0.25, help="least rise of the success rate (default 0.25)")
    arguments, more = parser.parse_known_args()
    if arguments.phases < 4:
        parser.error(f"--phases must be at least 4, got {arguments.phases}")

    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bapo_smoke_") as folder:
        train(arguments.config, arguments.phases, Path(folder), more)
        success = read_curve(Path(folder), "rollout/success")
    if len(success) != arguments.phases:
        print(f"smoke: {arguments.phases} phases were asked for, rollout/success has {len(success)} points")
        return 1

    last = success[-math.ceil(len(success) / 4) :]
    before, after = success[0], sum(last) / len(last)
    print(f"\nrollout/success by phase: {' '.join(f'{value:.3f}' for value in success)}")
    print(f"first phase {before:.3f}, mean of the last {len(last)} phases {after:.3f}, rise {after - before:+.3f}")
    print(f"least rise {arguments.margin:+.3f}, {time.monotonic() - started:.0f} s")
    if not after - before >= arguments.margin:
        print("smoke: FAILED, the success rate did not rise enough")
        return 1
    print("smoke: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
