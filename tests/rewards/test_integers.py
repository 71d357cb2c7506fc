r"""The strict path reads written-out integers and nothing else."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.rewards.integers import parse_integer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("000", 0),
        ("-0", 0),
        ("+7", 7),
        ("−7", -7),
        ("- 7", -7),
        ("7.", 7),
        ("7.00", 7),
        ("1,234,567", 1234567),
        ("11,\\! 111,\\! 100", 11111100),
        ("10{,}080", 10080),
        ("1\\,234", 1234),
        ("\\$36", 36),
        ("-\\$5", -5),
        ("€5", 5),
        ("5\\%", 5),
        ("90^{\\circ}", 90),
        ("90°", 90),
        ("100^\\circ\\text{C}", 100),
        ("\\text{x = -}7", -7),
        ("864 \\mbox{ inches}^2", 864),
        ("7 km/h", 7),
        ("7 square units", 7),
        ("7cm^2", 7),
        ("\\textbf{\\text{7}}", 7),
        ("\\left(7\\right)", 7),
        ("n = \\boxed{7}", 7),
        ("\\angle ABC = 40^\\circ", 40),
        ("S_{10} = f(2) = 7", 7),
        ("２，０４８", 2048),
    ],
)
def test_a_written_integer_is_read(text, value):
    assert parse_integer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ".", ".0", "-", "--7", "7.5", "7!", "7x", "7 x", "7pi", "7\\pi", "2^3", "7²", "7½", "52_8", "1e3",
        "0x10", "1,23", "12 34", "1, 234", "7,8", "٣", "VII", "seven", "\\frac{7}{1}", "\\sqrt{49}", "3+4", "\\pm 7",
        "\\approx 7", "2x = 14", "-x = 7", "x^2 = 7", "x \\neq 7", "x < 7", "\\sqrt{x} = 7", "x = 3 or x = 7",
        "\\text{minus }7", "\\text{about }7", "7\\text{ million}", "7\\text{ or }9", "7\\text{ and a half}",
        "7 thousand", "\\text{x \\leq 7}", "\\text{x ≤ 7}", "7\\text{ }^2", "\\text{88}^2", "7\\text{!}",
        "7\\mathrm{i}", "7...",
    ],
)  # fmt: skip
def test_anything_else_is_not_an_integer(text):
    assert parse_integer(text) is None


@settings(deadline=None)
@given(st.integers(-(10**30), 10**30), st.integers(0, 3))
def test_every_integer_reads_back(value, zeros):
    sign, digits = ("-" if value < 0 else ""), str(abs(value))
    assert parse_integer(f"{sign}{'0' * zeros}{digits}") == value
    assert parse_integer(f"$x = {sign}{digits}\\text{{ cm}}^2$.") == value
    assert parse_integer(f"{value:,}") == value
    assert parse_integer(f"{value:,}".replace(",", ",\\!")) == value


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=()), max_size=100))
def test_no_text_raises(text):
    assert parse_integer(text) is None or any(character.isdigit() for character in text)


@pytest.mark.parametrize("piece", ["a", "x=", "\\text{", "\\text{a}^", "7 ", " ", "(", "7 abc", ",111", "$"])
def test_time_is_bounded(piece):
    started = time.perf_counter()
    parse_integer((piece * 1000)[:1000])
    parse_integer(piece * 100_000)
    assert time.perf_counter() - started < 1.0


def test_huge_integers_compare_without_a_digit_limit():
    assert parse_integer("9" * 900) == 10**900 - 1
