"""Two rules that jsonargparse does not have: a swapped class starts afresh, and typos get a hint."""

import difflib
import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse._typehints as typehints
import yaml
from lightning.pytorch.cli import LightningArgumentParser

from bapo_lightning.errors import InputError


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


def check_config_files(arguments: Sequence[str]) -> None:
    """Look for syntax errors in the config files of a command line; jsonargparse does not say which file has one.

    Args:
        arguments: What follows ``bapo``.

    Raises:
        InputError: A file is not YAML; the message names file and line.
    """
    names = [a.partition("=")[2] for a in arguments if a.startswith("--config=")]
    names += [name for flag, name in pairwise(arguments) if flag in ("-c", "--config")]
    for path in map(Path, names):
        if not path.is_file():
            continue
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise InputError(f"{path}:{line}: this is not YAML: {error.problem}") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"{path}: this is not a YAML text file: {error}") from error
        if not isinstance(content, dict):
            found = "nothing" if content is None else f"a {type(content).__name__}"
            raise InputError(f"{path}: a config maps keys to values, this file holds {found}")


def name_key(message: str, error: BaseException | None) -> str:
    """Say in a message under which key the class stands that refused its arguments.

    The ``__init__`` of a class does not know where a config has put it, but the stack does: jsonargparse builds one
    component after the other, and those of a class inside a class likewise.

    Args:
        message: What went wrong.
        error: What was raised while classes were built, with what caused it.

    Returns:
        The message, with the key before it unless it begins with one itself.
    """
    levels: list[str] = []
    while error is not None:
        frames = error.__traceback__
        while frames is not None:
            if frames.tb_frame.f_code.co_name == "instantiate":
                level = getattr(frames.tb_frame.f_locals.get("component"), "dest", None)
                levels += [level] if level else []
            frames = frames.tb_next
        error = error.__cause__ or error.__context__
    key = ".".join(dict.fromkeys(levels))
    return message if not key or re.match(r"\S+\.\w", message) else f"{key}: {message}"


class ConfigParser(LightningArgumentParser):
    """Prints one message for a wrong key or value, with the nearest valid names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # An abbreviated flag would make a typo mean something.
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong and exit with code 2."""
        parser = getattr(ex, "subcommand_parser", None) or self
        print(f"bapo: error: {_shortened(message)}", file=sys.stderr)
        for name in _unknown_keys(message):
            _suggest(name, _valid_keys(parser, message), "keys")
        for name in _unknown_classes(message):
            if name in _class_names():
                print(f"{name} is a class of another kind than this key takes", file=sys.stderr)
            else:
                _suggest(name, _class_names(), "classes")
        if "is abstract" in message:
            print("name a class for this key first, then its arguments", file=sys.stderr)
        self.exit(2)
        raise AssertionError("unreachable: exit() ends the process")


def _suggest(name: str, valid: list[str], kind: str) -> None:
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.5)
    if near:
        print(f"nearest valid {kind} to {name!r}: {', '.join(near)}", file=sys.stderr)


_UNHELPFUL = ("Expected a <class 'NoneType'>", "Subtypes:")


def _shortened(message: str) -> str:
    """Keep, of a list of what each alternative type would have wanted, what concerns the user's value."""
    message = "\n".join(line for line in message.strip().splitlines() if "Expected a path but" not in line)
    message = message.partition("\nSubclass types expect one of")[0].rstrip()
    head, found, rest = message.partition("Does not validate against any of the Union subtypes")
    if not found:
        return head
    errors = re.search(r"Errors:\n(.*?)\n\s*Given value type", rest, flags=re.DOTALL)
    lines = errors.group(1).splitlines() if errors else rest.splitlines()
    kept = [line.strip().removeprefix("- ") for line in lines]
    return head + "; ".join(line for line in kept if line and not line.startswith(_UNHELPFUL))


def _unknown_keys(message: str) -> list[str]:
    """Keys that a message complains about."""
    patterns = (
        r"does not accept option '([^']+)'",
        r"Option '([^']+)' is not accepted",
        r"unrecognized arguments: --?([\w.]+)",
    )
    return [key for pattern in patterns for key in re.findall(pattern, message)]


def _unknown_classes(message: str) -> list[str]:
    """Class names that a message complains about, without their module."""
    names = re.findall(r"Expected a dot import path string: ([\w.]+)", message)
    names += re.findall(r"Problem with given class_path '([\w.]+)'", message)
    return [name.rpartition(".")[2] for name in names]


def _valid_keys(parser: Any, message: str) -> list[str]:
    """Keys of the parser, in full and, inside a group that the message names, without the group."""
    keys = [action.dest for action in parser._actions]
    for action in parser._actions:
        keys += [name.removeprefix("--") for name in action.option_strings if name.startswith("--")]
    keys = [key for key in keys if key.rpartition(".")[2] not in ("help", "config", "print_config")]
    for group in re.findall(r"[Gg]roup '([^']+)'", message):
        keys += [key.removeprefix(f"{group}.") for key in keys if key.startswith(f"{group}.")]
    return sorted(set(keys))


def _class_names() -> list[str]:
    """Names of everything that a config may inject."""
    from bapo_lightning import advantages, callbacks, clipping, replay, rewards, rollout, tasks

    rooms = (advantages, callbacks, clipping, replay, rewards, rollout, tasks)
    return sorted({name for room in rooms for name in room.__all__ if name[0].isupper()})
