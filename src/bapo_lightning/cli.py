"""The command ``bapo``. This file stays light: training libraries are imported only for a command that needs them."""

import argparse
import os
import sys
from collections.abc import Sequence

from bapo_lightning import __version__
from bapo_lightning.errors import input_error_behind

COMMANDS = {
    "fit": "train a policy",
    "validate": "run the benchmarks on a policy or checkpoint",
    "test": "the same as validate",
    "predict": "sample a response to every prompt of the task",
    "rollout": "sample training rollouts with fixed weights and write them to files",
    "replay": "train strategies side by side on the same rollout files",
    "compare": "test whether two evaluated checkpoints can be told apart",
}

EXIT_DONE, EXIT_FAILED, EXIT_INPUT = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: What follows ``bapo`` on the command line; None reads it from there.

    Returns:
        0 when the work is done, 2 when the user's input is wrong, 1 for anything else.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    first = next((a for a in arguments if not a.startswith("-")), None)
    if first not in COMMANDS and not any(a in ("-c", "--config") or a.startswith("--config=") for a in arguments):
        _top_level_parser().parse_args(arguments)
    try:
        if first == "replay":
            from bapo_lightning.replay_command import run as replay

            arguments.remove(first)
            return replay(arguments)
        if first == "compare":
            from bapo_lightning.compare_command import run as compare

            arguments.remove(first)
            return compare(arguments)
        from bapo_lightning.training_cli import run

        return run(arguments)
    except Exception as error:
        mistake = input_error_behind(error)
        if mistake is None:
            raise
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"bapo: error: {mistake}", file=sys.stderr)
        return EXIT_INPUT


def _top_level_parser() -> argparse.ArgumentParser:
    """Answers ``--help`` and ``--version`` and refuses unknown commands without importing anything heavy."""
    parser = argparse.ArgumentParser(
        prog="bapo",
        description="Off-policy reinforcement learning for reasoning LLMs with BAPO (arXiv 2510.18927) and rival "
        "clipping rules.",
        epilog="bapo COMMAND --help lists what a command takes.",
    )
    parser.add_argument("--version", action="version", version=f"bapo_lightning {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary)
    return parser


if __name__ == "__main__":
    sys.exit(main())
