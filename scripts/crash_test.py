"""Kill a run with SIGKILL again and again, resume it each time, and compare it with an undisturbed one.

    python scripts/crash_test.py --config configs/quickstart.yaml --updates 60 --kills 20

Both runs write a checkpoint after every update and a line about what each update trained on. Kills come during
start-up, rollouts, updates, and while a checkpoint is written. It is shown that after every kill a whole checkpoint is
there, that every update trained on the same responses, so every prompt as often, that no curve has a gap or another
point, and that the final weights are equal to the bit. Exit code 0 if all of it holds. Other flags go to ``bapo fit``.
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
MOMENTS = {"start-up": 2, "rollout": 2, "update": 3, "checkpoint": 3}
"""When a run is killed → how often, relative to the others."""
CURVE = "policy/entropy"


class UpdateLog(Callback):
    """Appends one line an update: what it trained on. Beside it, a file says what the run does at the moment.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def on_fit_start(self, trainer, pl_module) -> None:
        """A run that starts anew begins with a rollout."""
        if trainer.ckpt_path is None:
            self._now("rollout")

    def on_train_batch_start(self, trainer, pl_module, *args) -> None:
        """An update begins."""
        self._now("update")

    def on_train_epoch_end(self, trainer, pl_module) -> None:
        """The next phase is about to be sampled."""
        self._now("rollout")

    def on_train_batch_end(self, trainer, pl_module, *args) -> None:
        """Write the line of the update that was just done."""
        batch = pl_module.last_update.batch
        digest = hashlib.sha256()
        for tensor in (batch.response_ids, batch.response_mask, batch.policy_versions, batch.rollout_log_probs):
            digest.update(tensor.cpu().numpy().tobytes())
        rows = zip(batch.prompt_ids, batch.prompt_mask, strict=True)
        prompts = [" ".join(map(str, ids[mask].tolist())) for ids, mask in rows]
        line = {"update": trainer.global_step, "content": digest.hexdigest(), "prompts": prompts}
        with self.path.open("a") as file:
            # The line break comes first: a line that a kill cut short does not swallow this one.
            file.write("\n" + json.dumps(line))

    def _now(self, moment: str) -> None:
        self.path.with_suffix(".moment").write_text(moment)


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
        self.moment = folder / f"{name}.moment"
        self.output = folder / f"{name}.txt"
        self.folder = folder / "runs" / name
        callbacks = [
            {"class_path": "crash_test.UpdateLog", "init_args": {"path": str(self.log)}},
            {"class_path": "NewestCheckpoint", "init_args": {"every_n_updates": 1}},
        ]
        logger = {"init_args": {"save_dir": str(folder / "runs"), "name": name}}
        config = folder / f"{name}.yaml"
        config.write_text(yaml.safe_dump({"trainer": {"callbacks": callbacks, "logger": logger}}))
        self.command = [sys.executable, "-m", "bapo_lightning.cli", "fit", *arguments, "--config", str(config)]
        self.command += [f"--trainer.max_steps={updates}", "--trainer.max_epochs=-1"]
        self.command += ["--trainer.enable_progress_bar=false"]

    @property
    def version(self) -> Path:
        """The newest version: a run that was killed before its first checkpoint starts another one."""
        folders = self.folder.glob("version_*")
        return max(folders, key=lambda f: int(f.name.removeprefix("version_")), default=self.folder / "version_0")

    @property
    def last(self) -> Path:
        """The newest checkpoint."""
        return self.version / "checkpoints" / "last.ckpt"

    def updates_saved(self) -> int:
        """Updates behind the checkpoint that a resume takes; 0 without one. Raises ValueError if none is whole."""
        from bapo_lightning.runs import RunFolder

        return RunFolder(self.folder, None).find_last()[2] if self.can_resume() else 0

    def can_resume(self) -> bool:
        """Whether a checkpoint was written yet."""
        return any(self.last.with_name(name).exists() for name in ("last.ckpt", "previous.ckpt"))

    def lines(self) -> list[dict]:
        """What was logged; a line that a kill cut short is left out."""
        texts = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(text) for text in texts if text.endswith("}")]

    def start(self) -> subprocess.Popen:
        """Begin, or go on from the newest checkpoint."""
        resume = ["--ckpt_path", "last"] if self.can_resume() else []
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.moment.unlink(missing_ok=True)
        with self.output.open("a") as output:
            return subprocess.Popen(
                [*self.command, *resume], stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
            )

    def finish(self) -> bool:
        """Run to the end."""
        return self.start().wait() == 0

    def now(self) -> str:
        """What the run does, or did when it was killed."""
        if any(self.last.parent.glob(".unfinished-*")):
            return "checkpoint"
        return (self.moment.read_text() or "update") if self.moment.exists() else "start-up"


def kill_somewhere(run: Run, moment: str, at_least: int, at_most: int, rng: random.Random) -> str:
    """Start the run, kill it at such a moment after some updates; says when it was, or that it had ended before."""
    before, process = len(run.lines()), run.start()
    begun_enough = time.monotonic() + rng.uniform(0.2, 8.0)
    delay = rng.random() * {"start-up": 0.0, "rollout": 0.2, "update": 0.05, "checkpoint": 0.01}[moment]
    while process.poll() is None:
        done, now = len(run.lines()) - before, run.now()
        starting = moment == "start-up"
        if done >= at_most or (starting and (now != moment or time.monotonic() > begun_enough)):
            break
        if not starting and now == moment and done >= at_least:
            time.sleep(delay)
            break
        time.sleep(0.001)
    if process.poll() is None:
        process.kill()
    code = process.wait()
    return f"it had ended with exit code {code}" if code >= 0 else run.now()


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
    common = sorted(expected.keys() & done.keys())
    found += [f"update {n} trained on other responses" for n in common if expected[n] != done[n]]
    counts = [Counter(p for line in lines.values() for p in line["prompts"]) for lines in (expected, done)]
    if counts[0] != counts[1]:
        found.append(f"prompts were not trained equally often: {(counts[0] - counts[1]) + (counts[1] - counts[0])}")
    curves = []
    for run in (straight, killed):
        events = EventAccumulator(str(run.version), size_guidance={"scalars": 0})
        events.Reload()
        curves.append([(event.step, event.value) for event in events.Scalars(CURVE)])
    if [step for step, _ in curves[1]] != sorted(expected):
        found.append(f"the curve of {CURVE} has points at {[step for step, _ in curves[1]]}")
    elif curves[0] != curves[1]:
        found.append(f"the curve of {CURVE} has other values")
    weights = [torch.load(run.last, weights_only=True)["state_dict"] for run in (straight, killed)]
    found += [f"weights differ: {n}" for n, value in weights[0].items() if not torch.equal(value, weights[1][n])]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", action="append", help="of bapo fit; may be repeated; by default the quickstart")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--folder", type=Path, default=Path("runs/crash_test"), help="must not exist")
    options, further = parser.parse_known_args()
    options.folder.mkdir(parents=True)
    folder = options.folder.resolve()
    configs = options.config or [str(HERE.parent / "configs/quickstart.yaml")]
    arguments = [word for config in configs for word in ("--config", config)] + further
    straight, killed = (Run(name, folder, arguments, options.updates) for name in ("straight", "killed"))
    if not straight.finish():
        print(f"FAILED: the undisturbed run; see {straight.output}")
        return 1
    print(f"undisturbed: {len(straight.lines())} updates", flush=True)

    rng = random.Random(options.seed)
    failures, met, saved = [], Counter(), 0
    for number in range(1, options.kills + 1):
        (moment,) = rng.choices(list(MOMENTS), list(MOMENTS.values()))
        kills_left, updates_left = options.kills - number + 1, options.updates - saved
        at_least = rng.randint(0, updates_left // (kills_left + 1))
        at_most = max(1, updates_left - 2 * kills_left)
        where = kill_somewhere(killed, moment, at_least, at_most, rng)
        met[where] += 1
        if where not in MOMENTS:
            failures.append(f"kill {number} found no run: {where}; see {killed.output}")
            break
        try:
            saved = killed.updates_saved()
        except ValueError as error:
            failures.append(f"no whole checkpoint after kill {number}: {error}")
            break
        print(f"kill {number}: {where}; the checkpoint is that of update {saved}", flush=True)
    if not failures:
        print("killed during", ", ".join(f"{moment} {count}x" for moment, count in sorted(met.items())))
        if not killed.finish():
            failures.append(f"the killed run could not be finished; see {killed.output}")
        else:
            failures += differences(straight, killed)
            print(f"finished; {len(killed.lines()) - len(straight.lines())} updates were done again after kills")
    for failure in failures:
        print(f"FAILED: {failure}")
    if not failures:
        print("every update, every prompt, every curve and every weight is that of the undisturbed run")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
