"""Kill a run with SIGKILL again and again, resume it each time, and compare it with an undisturbed one.

    python scripts/crash_test.py --config configs/quickstart.yaml --updates 60 --kills 20

Both runs write a checkpoint after every update and a line about what each update trained on. It is shown that after
every kill the newest checkpoint loads, that every update trained on the same responses, so every prompt as often, that
no curve has a gap or a doubled point, and that the final weights are equal to the bit. Exit code 0 if all of it holds.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import yaml
from lightning.pytorch import Callback

HERE = Path(__file__).resolve().parent
START_UP_KILLS = 0.2
"""Share of kills that come at a random moment of the start, before any update."""


class UpdateLog(Callback):
    """Appends one line an update: what it trained on.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        """Write the line of the update that was just done."""
        batch = pl_module.last_update.batch
        digest = hashlib.sha256()
        for tensor in (batch.response_ids, batch.response_mask, batch.policy_versions, batch.rollout_log_probs):
            digest.update(tensor.cpu().numpy().tobytes())
        prompts = [
            " ".join(map(str, ids[mask].tolist()))
            for ids, mask in zip(batch.prompt_ids, batch.prompt_mask, strict=True)
        ]
        line = {"update": trainer.global_step, "content": digest.hexdigest(), "prompts": prompts}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Run:
    """One run of `bapo fit` in processes of its own.

    Args:
        name: Of the run.
        folder: Where everything is written.
        arguments: Further arguments of ``bapo fit``.
        updates: Updates in all.
    """

    def __init__(self, name: str, folder: Path, arguments: list[str], updates: int) -> None:
        self.log = folder / f"{name}.jsonl"
        self.output = folder / f"{name}.txt"
        self.version = folder / "runs" / name / "version_0"
        watching = {
            "trainer": {
                "callbacks": [
                    {"class_path": "crash_test.UpdateLog", "init_args": {"path": str(self.log)}},
                    {"class_path": "NewestCheckpoint", "init_args": {"every_n_updates": 1}},
                ],
                "logger": {
                    "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
                    "init_args": {"save_dir": str(folder / "runs"), "name": name, "default_hp_metric": False},
                },
            }
        }
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump(watching))
        self.command = [sys.executable, "-m", "bapo_lightning.cli", "fit", *arguments, "--config", str(config)]
        self.command += [f"--trainer.max_steps={updates}", "--trainer.max_epochs=-1"]
        self.command += ["--trainer.enable_progress_bar=false"]

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.version / "checkpoints" / "last.ckpt"

    def lines(self) -> list[dict]:
        """What was logged; a line that a kill cut short is left out."""
        lines = []
        for text in self.log.read_text().splitlines() if self.log.exists() else []:
            try:
                lines.append(json.loads(text))
            except json.JSONDecodeError:
                continue
        return lines

    def start(self) -> subprocess.Popen:
        """Begin, or go on from the newest checkpoint."""
        resume = ["--ckpt_path", "last"] if self.last.exists() else []
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.output.open("a") as output:
            return subprocess.Popen(
                [*self.command, *resume], stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
            )

    def finish(self) -> bool:
        """Run to the end."""
        return self.start().wait() == 0


def kill_somewhere(run: Run, rng: random.Random) -> str:
    """Start the run and kill it at a random moment; says where, or that it had ended before."""
    before = len(run.lines())
    process = run.start()
    if rng.random() < START_UP_KILLS:
        time.sleep(rng.uniform(0.2, 6.0))
    else:
        wanted = before + rng.randint(1, 5)
        while process.poll() is None and len(run.lines()) < wanted:
            time.sleep(0.02)
        time.sleep(rng.uniform(0.0, 0.5))
    if process.poll() is not None:
        return f"had ended with exit code {process.returncode}"
    process.kill()
    process.wait()
    lines = run.lines()
    return f"after {len(lines) - before} updates, the last of them {lines[-1]['update'] if lines else 'none'}"


def differences(straight: Run, killed: Run) -> list[str]:
    """Everything in which the killed run is not the undisturbed one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    expected = {line["update"]: line for line in straight.lines()}
    done: dict[int, dict] = {}
    found = [
        f"update {line['update']} was done twice, on different responses"
        for line in killed.lines()
        if done.setdefault(line["update"], line) != line
    ]
    found += [f"update {n} is missing" for n in sorted(expected.keys() - done.keys())]
    found += [f"update {n} is one too many" for n in sorted(done.keys() - expected.keys())]
    found += [
        f"update {n} trained on other responses"
        for n in sorted(expected.keys() & done.keys())
        if expected[n] != done[n]
    ]
    counts = [Counter(p for line in lines.values() for p in line["prompts"]) for lines in (expected, done)]
    if counts[0] != counts[1]:
        found.append(f"prompts were not trained equally often: {(counts[0] - counts[1]) + (counts[1] - counts[0])}")
    events = EventAccumulator(str(killed.version), size_guidance={"scalars": 0})
    events.Reload()
    steps = [event.step for event in events.Scalars("policy/entropy")]
    if steps != sorted(expected):
        found.append(f"the curve of policy/entropy has steps {steps}")
    weights = [torch.load(run.last, weights_only=True)["state_dict"] for run in (straight, killed)]
    found += [
        f"weights differ: {name}" for name, value in weights[0].items() if not torch.equal(value, weights[1][name])
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", required=True, help="a config of bapo fit; may be repeated")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--folder", type=Path, default=Path("runs/crash_test"), help="must not exist")
    options, further = parser.parse_known_args()
    options.folder.mkdir(parents=True)
    folder = options.folder.resolve()
    arguments = [word for config in options.config for word in ("--config", config)] + further
    straight, killed = (Run(name, folder, arguments, options.updates) for name in ("straight", "killed"))
    if not straight.finish():
        print(f"the undisturbed run failed; see {straight.output}")
        return 1
    print(f"undisturbed: {len(straight.lines())} updates")

    from bapo_lightning.runs import inspect_checkpoint

    rng = random.Random(options.seed)
    failures = []
    for number in range(1, options.kills + 1):
        where = kill_somewhere(killed, rng)
        updates = 0
        if killed.last.exists():
            try:
                updates = inspect_checkpoint(killed.last)
            except ValueError as error:
                failures.append(f"after kill {number}: {error}")
        print(f"kill {number}: {where}; the checkpoint is that of update {updates}", flush=True)
    if not killed.finish():
        failures.append(f"the killed run could not be finished; see {killed.output}")
    else:
        failures += differences(straight, killed)
        repeated = len(killed.lines()) - len(straight.lines())
        print(f"finished; {repeated} updates were done again after kills")
    for failure in failures:
        print(f"FAILED: {failure}")
    if not failures:
        print("every update, every prompt, every curve and every weight is that of the undisturbed run")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
