"""Two rules that jsonargparse does not have: a swapped class starts afresh, and typos get a hint."""

import difflib
import re
import sys
from typing import Any, NoReturn

import jsonargparse._typehints as typehints
from lightning.pytorch.cli import LightningArgumentParser


def forget_arguments_of_replaced_classes() -> None:
    """Make a later class replace an earlier one whole, arguments included.

    jsonargparse keeps the arguments of the earlier class that the later one also accepts: ``FixedClip`` with
    ``high: 1.2``, then ``--model.clipping=ClipHigher``, would be a ClipHigher that does not clip higher. With this
    rule A then B resolves exactly as B alone, for every injected class. It replaces one private function of
    jsonargparse, which the pin on its version and a test over all ordered pairs of strategies keep honest.
    """
    typehints.discard_init_args_on_class_path_change = _discard_all_on_change


def _discard_all_on_change(_parser_or_action: Any, prev_val: Any, value: Any) -> None:
    if prev_val and "init_args" in prev_val and prev_val["class_path"] != value["class_path"]:
        previous = typehints.subclass_spec_as_namespace(prev_val)  # type: ignore[no-untyped-call]
        for key in list(previous.init_args.keys()):
            previous.init_args.pop(key, None)


class ConfigParser(LightningArgumentParser):
    """Prints one message for a wrong key or value, with the nearest valid keys."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        parser = getattr(ex, "subcommand_parser", None) or self
        print(f"bapo: error: {message.strip()}", file=sys.stderr)
        for key in _unknown_keys(message):
            near = difflib.get_close_matches(key, _valid_keys(parser, message), n=3, cutoff=0.5)
            if near:
                print(f"nearest valid keys to {key!r}: {', '.join(near)}", file=sys.stderr)
        self.exit(2)
        raise AssertionError("unreachable: exit() ends the process")


def _unknown_keys(message: str) -> list[str]:
    """Keys that a message complains about."""
    patterns = (
        r"does not accept option '([^']+)'",
        r"Option '([^']+)' is not accepted",
        r"unrecognized arguments: --?([\w.]+)",
    )
    return [key for pattern in patterns for key in re.findall(pattern, message)]


def _valid_keys(parser: Any, message: str) -> list[str]:
    """Keys of the parser, in full and, inside a group that the message names, without the group."""
    keys = [action.dest for action in parser._actions if action.dest not in ("help", "config")]
    for action in parser._actions:
        keys += [name.lstrip("-") for name in action.option_strings]
    for group in re.findall(r"[Gg]roup '([^']+)'", message):
        keys += [key.removeprefix(f"{group}.") for key in keys if key.startswith(f"{group}.")]
    return sorted(set(keys))
