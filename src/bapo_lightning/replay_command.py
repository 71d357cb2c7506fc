"""`bapo replay`: strategies trained side by side on the same frozen rollouts, each by a `bapo fit` of its own."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bapo_lightning.errors import InputError

COLUMNS = {
    "entropy first": ("policy/entropy", "first"),
    "entropy last": ("policy/entropy", "last"),
    "KL last": ("policy/kl", "last"),
    "ratio last": ("ratio/mean", "last"),
    "clipped low": ("clip/fraction_low", "mean"),
    "clipped high": ("clip/fraction_high", "mean"),
    "grad norm": ("optim/grad_norm", "mean"),
}
"""Heading → curve, and what of it is shown: over all updates of the run."""


def parser() -> argparse.ArgumentParser:
    """The command line of `bapo replay`."""
    made = argparse.ArgumentParser(
        prog="bapo replay",
        description="Train clipping strategies on the same frozen rollouts, each from the same weights and in the same "
        "order, and compare them. Further arguments (--config FILE, --trainer.max_steps=…) are those of bapo fit.",
        allow_abbrev=False,
    )
    made.add_argument("--rollouts", required=True, help="Parquet file or folder of bapo rollout, or of the same format")
    made.add_argument(
        "--strategy",
        action="append",
        metavar="CLASS|FILE",
        help="a clipping class (FixedClip), or a YAML file that sets model.clipping; repeat it for several; without it "
        "the config's own",
    )
    made.add_argument("--out", default="runs/replay", help="folder of the runs, one a strategy (default: %(default)s)")
    return made


def run(arguments: Sequence[str]) -> int:
    """Train every strategy, print the comparison and write it beside the runs.

    Args:
        arguments: What follows ``bapo replay``.

    Returns:
        The exit code: 0, or that of the first `bapo fit` that failed.

    Raises:
        InputError: The user's input is unusable.
    """
    options, fit_arguments = parser().parse_known_args(list(arguments))
    out = Path(options.out)
    if not Path(options.rollouts).exists():
        raise InputError(f"--rollouts: {options.rollouts} does not exist")
    folders = {}
    for label, flags in _strategies(options.strategy or []).items():
        print(f"\n=== {label}", flush=True)
        code = _fit([*fit_arguments, *flags, f"--data.rollouts={options.rollouts}", *_logger(out, label)])
        if code != 0:
            return code
        folders[label] = _newest_version(out / label)
    table = comparison(folders)
    print(f"\n{table}")
    (out / "comparison.md").write_text(table + "\n", encoding="utf-8")
    print(f"written to {out / 'comparison.md'}; curves: tensorboard --logdir {out}")
    return 0


def _strategies(named: Sequence[str]) -> dict[str, list[str]]:
    """Label → flags of `bapo fit` that choose the strategy."""
    if not named:
        return {"config": []}
    flags: dict[str, list[str]] = {}
    for name in named:
        is_file = name.endswith((".yaml", ".yml"))
        if is_file and not Path(name).is_file():
            raise InputError(f"--strategy: the file {name} does not exist")
        label = Path(name).stem if is_file else name.rpartition(".")[2]
        if label in flags:
            raise InputError(f"--strategy: {label} is given twice; their runs could not be told apart")
        flags[label] = ["--config", name] if is_file else [f"--model.clipping={name}"]
    return flags


def _logger(out: Path, label: str) -> list[str]:
    arguments = {"save_dir": out, "name": label, "default_hp_metric": "false"}
    return [
        "--trainer.logger=lightning.pytorch.loggers.TensorBoardLogger",
        *(f"--trainer.logger.init_args.{name}={value}" for name, value in arguments.items()),
    ]


def _fit(arguments: Sequence[str]) -> int:
    """Run `bapo fit` in a process of its own, so that no strategy meets what another left in memory."""
    # Ctrl-C reaches the child too, which then stops with a checkpoint; this process waits for that.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "bapo_lightning.cli", "fit", *arguments], preexec_fn=_heed_interrupts
        ) as process:
            code = process.wait()
            return 128 - code if code < 0 else code
    finally:
        signal.signal(signal.SIGINT, previous)


def _heed_interrupts() -> None:
    # An ignored signal stays ignored in a child.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _newest_version(folder: Path) -> Path:
    return max(folder.glob("version_*"), key=lambda path: int(path.name.partition("_")[2]))


def comparison(folders: dict[str, Path]) -> str:
    """Compare runs by their curves.

    Args:
        folders: Label → folder with the event files of a run.

    Returns:
        A Markdown table, one row a run.
    """
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    lines = [f"| strategy | updates | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for label, folder in folders.items():
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
        events.Reload()
        curves = {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        cells = [_cell(curves.get(tag, []), kind) for tag, kind in COLUMNS.values()]
        lines.append(f"| {label} | {len(curves.get('optim/lr', []))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(values: Sequence[float], kind: str) -> str:
    if not values:
        return "–"
    shown = {"first": values[0], "last": values[-1], "mean": sum(values) / len(values)}[kind]
    return f"{shown:.4g}"
