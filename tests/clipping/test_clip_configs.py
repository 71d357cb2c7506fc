"""The drop-ins of configs/clipping: each parses, states every argument, and replaces another one cleanly."""

import inspect
from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentParser

from bapo_lightning import clipping
from bapo_lightning.clipping import BAPOClip, ClippingStrategy, ReweightedStrategy, TokenSelector

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "clipping"
NAMES = {
    "asymmetric": "AsymmetricClip",
    "asymre": "AsymRE",
    "bapo": "BAPOClip",
    "cispo": "CISPO",
    "clip_cov": "ClipCov",
    "clip_higher": "ClipHigher",
    "dcpo": "DCPO",
    "decoupled": "DecoupledPPO",
    "dual_clip": "DualClip",
    "fixed": "FixedClip",
    "gmpo": "GMPO",
    "gspo": "GSPO",
    "gspo_token": "GSPOToken",
    "kl_cov": "KLCov",
    "low_probability": "LowProbabilityDamping",
    "m2po": "M2PO",
    "masked_is": "MaskedIS",
    "no_clip": "NoClip",
    "sapo": "SAPO",
    "top_entropy": "TopEntropyTokens",
    "topr": "TOPR",
    "truncated_is": "TruncatedIS",
}
EXPECTED = {name: getattr(clipping, kind)() for name, kind in NAMES.items()} | {"bapo_official": BAPOClip.official()}


def test_every_strategy_has_a_drop_in_and_every_drop_in_a_strategy():
    kinds = [value for value in vars(clipping).values() if inspect.isclass(value)]
    abstract = {ClippingStrategy, ReweightedStrategy, TokenSelector}
    strategies = {kind.__name__ for kind in kinds if issubclass(kind, ClippingStrategy) and kind not in abstract}
    assert strategies == set(NAMES.values())
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", NAMES)
def test_docstring_says_what_a_reader_wants_to_know(name):
    text = inspect.getdoc(getattr(clipping, NAMES[name]))
    if name != "bapo":
        assert all(f"\n{part}: " in text for part in ("Formula", "Source", "Helps", "Refuses")), text


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
    stated = content["model"]["clipping"].get("init_args", {})
    assert list(stated) == list(inspect.signature(type(EXPECTED[name])).parameters)


@pytest.mark.parametrize("name", EXPECTED)
def test_drop_in_opens_with_a_comment(name):
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ")
    comment = text.partition("\nmodel:\n")[0]
    assert "arXiv" in comment
    assert "# When: " in comment


@pytest.fixture(scope="module")
def alone(parser):
    return {name: parse(parser, f"--config={FOLDER / name}.yaml").model.clipping.as_dict() for name in EXPECTED}


@pytest.mark.parametrize("first", EXPECTED)
def test_second_drop_in_leaves_nothing_of_the_first(parser, alone, first):
    for second in EXPECTED.keys() - {first}:
        both = parse(parser, f"--config={FOLDER / first}.yaml", f"--config={FOLDER / second}.yaml")
        assert {"init_args": {}} | both.model.clipping.as_dict() == {"init_args": {}} | alone[second], second


def test_an_inner_strategy_is_chosen_by_flags(parser):
    config = parse(
        parser,
        "--model.clipping=TopEntropyTokens",
        "--model.clipping.inner=BAPOClip",
        "--model.clipping.inner.target=0.45",
        "--model.clipping.share=0.5",
    )
    strategy = parser.instantiate(config).model.clipping
    assert repr(strategy) == f"TopEntropyTokens(inner={BAPOClip(target=0.45)!r}, share=0.5)"


def test_short_names_and_single_arguments_work_on_the_command_line(parser):
    config = parse(parser, "--model.clipping=ClipHigher", "--model.clipping.high=1.3")
    assert repr(parser.instantiate(config).model.clipping) == "ClipHigher(low=0.8, high=1.3)"
