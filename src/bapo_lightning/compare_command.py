"""`bapo compare`: whether evaluated checkpoints can be told apart on the same problems."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import PairedComparison, compare_paired, read_results


@dataclass(frozen=True)
class Evaluated:
    """One side of a comparison."""

    label: str
    records: dict[str, dict[str, Any]]
    """Benchmark → its newest record."""


def parser() -> argparse.ArgumentParser:
    """The command line of `bapo compare`."""
    made = argparse.ArgumentParser(
        prog="bapo compare",
        description="Compare the benchmark scores of checkpoints, problem by problem, each with the first. A paired "
        "test says whether a difference is more than chance.",
        allow_abbrev=False,
    )
    made.add_argument(
        "evaluated",
        nargs="+",
        metavar="RUN[@UPDATE]",
        help="run folder or results.json; @UPDATE takes the evaluation after so many updates (default: the newest)",
    )
    made.add_argument("--benchmark", action="append", help="only this benchmark; may be repeated")
    made.add_argument("--out", help="write the Markdown table to this file, too")
    return made


def run(arguments: Sequence[str]) -> int:
    """Compare, print the table and write it where asked.

    Args:
        arguments: What follows ``bapo compare``.

    Returns:
        0.

    Raises:
        InputError: The user's input is unusable.
    """
    options = parser().parse_args(list(arguments))
    if len(options.evaluated) < 2:
        raise InputError("bapo compare needs two evaluations: RUN_A RUN_B, or RUN@0 RUN@100")
    sides = [read_side(text) for text in options.evaluated]
    lines = [
        "| benchmark | first | second | problems | first | second | difference | 95 % | p | verdict |",
        "|" + "---|" * 10,
    ]
    notes: list[str] = []
    for second in sides[1:]:
        names = [name for name in sides[0].records if name in second.records]
        if options.benchmark:
            names = [name for name in names if name in options.benchmark]
        if not names:
            raise InputError(
                f"{sides[0].label} ({', '.join(sides[0].records)}) and {second.label} ({', '.join(second.records)}) "
                f"have no benchmark in common{' among those asked for' if options.benchmark else ''}"
            )
        for name in names:
            found, note = compare_records(sides[0].records[name], second.records[name])
            lines.append(_row(name, sides[0].label, second.label, found))
            notes += [f"{name}, {second.label}: {text}" for text in (note, _explanation(found)) if text]
    text = "\n".join([*lines, "", *notes])
    print(text)
    if options.out:
        try:
            Path(options.out).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--out: {options.out} cannot be written: {error.strerror}") from error
    return 0


def read_side(text: str) -> Evaluated:
    """Find the records that ``RUN[@UPDATE]`` stands for.

    Raises:
        InputError: There are none.
    """
    place, at, number = text.rpartition("@")
    update: int | None = None
    if at and not Path(text).exists():
        if not number.isdigit():
            raise InputError(f"{text}: after @ must stand the number of updates, got {number!r}")
        update = int(number)
    else:
        place = text
    path = Path(place)
    file = path / "results.json" if path.is_dir() else path
    if not file.is_file():
        versions = sorted(str(p.parent) for p in path.glob("version_*/results.json")) if path.is_dir() else []
        hint = f"; did you mean {', '.join(versions)}?" if versions else "; bapo validate writes one"
        raise InputError(f"{text}: there is no {file}{hint}")
    records = read_results(file)
    chosen = {r["benchmark"]: r for r in records if update is None or r["update"] == update}
    if not chosen:
        had = ", ".join(f"{r['benchmark']} after {r['update']}" for r in records) or "nothing"
        raise InputError(f"{text}: {file} has no evaluation after {update} updates; it has {had}")
    return Evaluated(text, chosen)


def compare_records(first: dict[str, Any], second: dict[str, Any]) -> tuple[PairedComparison, str]:
    """Compare two records of one benchmark by the share of correct samples of each problem.

    Args:
        first: A record of ``results.json``.
        second: Another one.

    Returns:
        The comparison, and what else differs between the two, in words.

    Raises:
        InputError: They are not about the same problems.
    """
    name = first["benchmark"]
    if first["data"]["sha256"] != second["data"]["sha256"]:
        raise InputError(
            f"{name}: the problems are not the same ({first['data']['path']} and {second['data']['path']} have "
            "different hashes), so scores cannot be paired"
        )
    common = [p for p in first["problems"] if p in second["problems"]]
    shares = [
        (_share(first["problems"][p]), _share(second["problems"][p]))
        for p in common
        if first["problems"][p]["scored"] and second["problems"][p]["scored"]
    ]
    others = {**first["settings"], "seed": first["seed"], **_judging(first)}
    theirs = {**second["settings"], "seed": second["seed"], **_judging(second)}
    different = [
        f"{key} {others.get(key)} and {theirs.get(key)}" for key in others if others.get(key) != theirs.get(key)
    ]
    note = f"the two were not asked alike: {'; '.join(different)}" if different else ""
    return compare_paired([a for a, _ in shares], [b for _, b in shares]), note


def _judging(record: dict[str, Any]) -> dict[str, Any]:
    made_by = record.get("made_by", {})
    return {key: made_by.get(key) for key in ("reward", "chat_template_sha256")}


def _share(counts: dict[str, int]) -> float:
    return counts["correct"] / counts["scored"]


def _row(name: str, first: str, second: str, c: PairedComparison) -> str:
    verdict = ("better" if c.difference > 0 else "worse") if c.is_told_apart else "cannot tell"
    p_value = f"{c.p_value:.3f}" if c.p_value >= 0.001 else "< 0.001"
    return (
        f"| {name} | {first} | {second} | {c.num_problems} | {c.first:.4f} | {c.second:.4f} | {c.difference:+.4f} "
        f"| [{c.interval.low:+.4f}, {c.interval.high:+.4f}] | {p_value} | {verdict} |"
    )


def _explanation(c: PairedComparison) -> str:
    if c.is_told_apart:
        return ""
    return (
        f"{c.num_problems} problems cannot tell the two apart; a difference below about {c.detectable:.3f} would look "
        "like chance here. More problems help; more samples help where answers vary between samples."
    )
