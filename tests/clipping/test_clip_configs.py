"""The drop-ins of configs/clipping: each parses, states every argument, and replaces another one cleanly."""

import inspect
import itertools
from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from bapo_lightning.clipping import BAPOClip, ClipHigher, ClippingStrategy, FixedClip

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "clipping"
EXPECTED = {
    "fixed": FixedClip(),
    "clip_higher": ClipHigher(),
    "bapo": BAPOClip(),
    "bapo_official": BAPOClip.official(),
}


@pytest.fixture(scope="module")
def parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--config", action="config")
    parser.add_argument("--model.clipping", type=ClippingStrategy)
    return parser


def parse(parser: ArgumentParser, *arguments: str):
    return parser.parse_args(list(arguments))


@pytest.mark.parametrize("name", EXPECTED)
def test_drop_in_builds_the_strategy_it_is_named_after(parser, name):
    config = parse(parser, f"--config={FOLDER / name}.yaml")
    strategy = parser.instantiate(config).model.clipping
    assert type(strategy) is type(EXPECTED[name])
    assert repr(strategy) == repr(EXPECTED[name])


@pytest.mark.parametrize("name", EXPECTED)
def test_drop_in_states_every_argument(name):
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    stated = content["model"]["clipping"]["init_args"]
    assert list(stated) == list(inspect.signature(type(EXPECTED[name])).parameters)


@pytest.mark.parametrize("name", EXPECTED)
def test_drop_in_opens_with_a_comment(name):
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "arXiv" in text.partition("model:")[0]
    assert "# When: " in text.partition("model:")[0]


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(EXPECTED, 2)))
def test_second_drop_in_leaves_nothing_of_the_first(parser, first, second):
    both = parse(parser, f"--config={FOLDER / first}.yaml", f"--config={FOLDER / second}.yaml")
    alone = parse(parser, f"--config={FOLDER / second}.yaml")
    assert both.model.clipping == alone.model.clipping


def test_short_names_and_single_arguments_work_on_the_command_line(parser):
    config = parse(parser, "--model.clipping=ClipHigher", "--model.clipping.high=1.3")
    assert repr(parser.instantiate(config).model.clipping) == "ClipHigher(low=0.8, high=1.3)"
