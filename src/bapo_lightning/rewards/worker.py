"""The process that asks math-verify. `pool` starts this file by its path, alone, so it imports nothing of ours.

Messages are JSON with a 4-byte length in front. In: first ``{"sys_path", "memory_bytes"}``, then one
``{"gold", "answer", "cpu_seconds"}`` per comparison. Out: ``{"ready": true}``, then ``{"verdict"}`` for each,
with ``"is_last"`` when the process ends by itself after it.
"""

import ast
import json
import os
import re
import struct
import sys
from fractions import Fraction
from functools import lru_cache
from typing import Any, BinaryIO

HEADER = struct.Struct(">I")
"""Length of the message that follows, in bytes."""

_ROUNDING_DIGITS = 6
_LITERAL = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)\.[0-9]+"
_LITERAL_IN_LIST = r"[0-9]*\.[0-9]+"
_NOT_REPEATING = r"(?![0-9.]|\s*\\(?:overline|dot|bar)(?![A-Za-z]))"
_DECIMAL = re.compile(rf"(?<![0-9.]){_LITERAL}{_NOT_REPEATING}")
_DECIMAL_IN_LIST = re.compile(rf"(?<![0-9.]){_LITERAL_IN_LIST}{_NOT_REPEATING}")
_REPEATING = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]*)\s*\\(?:overline|bar)\s*\{\s*([0-9]+)\s*\}")
_LIST = re.compile(r"[(\[]|\\\{")
_PERCENT = re.compile(rf"({_LITERAL}|[0-9]+)\s*\\?%")
_REPEATED_BACKSLASH = re.compile(r"\\\\(?=[A-Za-z])")
_EVALUATED = ("Integer", "Float", "Rational", "Symbol")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FORBIDDEN_EVENTS = (
    *("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system", "os.startfile", "subprocess.", "pty."),
    *("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "ctypes.", "webbrowser."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.kill", "os.putenv", "os.unsetenv", "shutil.", "tempfile.", "sqlite3.", "signal.pthread_kill"),
)
"""Audit events (docs.python.org, "Audit events table") of starting, sending, changing and deleting things."""
_MATRIX = re.compile(r"matrix|array|cases|\\\\\s")


def judge(gold: str, answer: str) -> str:
    r"""Compare an answer with a gold by math-verify, every decimal being the exact number that it spells.

    Args:
        gold: LaTeX without delimiters.
        answer: The same, as extracted from a response.

    Returns:
        ``correct``, ``wrong`` or ``bad_gold`` (the gold is not mathematics).

    Raises:
        Exception: Whatever the comparison raised.
    """
    from math_verify import verify
    from sympy import nan, zoo  # type: ignore[import-untyped]

    expected = _parse_gold(gold)
    if not expected or expected[0].has(nan, zoo):
        return "bad_gold"
    if "%" in gold:
        given_text = _PERCENT.sub(r"\\frac{\1}{100}", answer)
    else:
        given_text = answer.replace("\\%", " ").replace("%", " ")
    given = parse_math(given_text)
    if not given:
        return "wrong"
    for value, text, other in ((given[0], given_text, expected[0]), (expected[0], gold, given[0])):
        if is_rounded(value, text, other):
            return "correct"
    is_right = verify(expected, given, timeout_seconds=None, raise_on_error=True)
    return "correct" if is_right else "wrong"


@lru_cache(maxsize=4096)
def _parse_gold(gold: str) -> list[Any]:
    return parse_math(_PERCENT.sub(r"\\frac{\1}{100}", gold))


def parse_math(text: str) -> list[Any]:
    """Parse LaTeX into at most one sympy object; decimals become exact fractions."""
    from math_verify import LatexExtractionConfig, parse

    if not _MATRIX.search(text):
        text = _REPEATED_BACKSLASH.sub(r"\\", text)
    # Between brackets a comma separates entries; elsewhere it may group digits.
    decimal = _DECIMAL_IN_LIST if _LIST.search(text) else _DECIMAL
    exact = decimal.sub(_as_fraction, _REPEATING.sub(_as_repeating_fraction, " ".join(text.split())))
    config = [LatexExtractionConfig(boxed_match_priority=-1)]
    found: list[Any] = parse(f"${exact}$", config, fallback_mode="no_fallback", parsing_timeout=None)
    return found[:1]


def _as_fraction(match: re.Match[str]) -> str:
    whole, _, fraction = match.group().replace(",", "").partition(".")
    return rf"\frac{{{int(whole + fraction)}}}{{{10 ** len(fraction)}}}"


def _as_repeating_fraction(match: re.Match[str]) -> str:
    whole, fixed, period = match.groups()
    shift, nines = 10 ** len(fixed), 10 ** len(period) - 1
    return rf"\frac{{{int((whole + fixed) or '0') * nines + int(period)}}}{{{shift * nines}}}"


def is_rounded(value: Any, text: str, exact: Any) -> bool:
    """Whether a decimal is another value rounded to six or more significant digits.

    Args:
        value: What ``text`` was parsed to.
        text: A text with exactly one decimal literal as its number.
        exact: The value that may have been rounded; a real constant.

    Returns:
        False too when either is anything else.
    """
    from sympy import Eq, Expr

    value, exact = (side.rhs if isinstance(side, Eq) else side for side in (value, exact))
    literals = _DECIMAL.findall(text)
    if len(literals) != 1 or not isinstance(value, Expr) or not isinstance(exact, Expr):
        return False
    whole, _, fraction = literals[0].replace(",", "").partition(".")
    spelled = Fraction(int(whole + fraction), 10 ** len(fraction))
    number = value.doit()
    if not number.is_Rational or abs(Fraction(number.p, number.q)) != spelled:
        return False
    if len((whole + fraction).lstrip("0")) < _ROUNDING_DIGITS or not (exact.is_number and exact.is_finite):
        return False
    digits = len(whole) + len(fraction) + 15
    real, imaginary = exact.evalf(digits).as_real_imag()
    if imaginary != 0 or not real.is_Float:
        return False
    distance = abs(Fraction(str(real)) - Fraction(number.p, number.q))
    return distance <= Fraction(1, 2 * 10 ** len(fraction))


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """Read one message; None at the end of the stream."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    (length,) = HEADER.unpack(header)
    message: dict[str, Any] = json.loads(stream.read(length))
    return message


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message and flush."""
    body = json.dumps(message).encode("ascii")
    stream.write(HEADER.pack(len(body)) + body)
    stream.flush()


def guard_eval() -> None:
    """Let sympy's parser evaluate plain numbers and symbols only.

    sympy turns text into objects through Python's ``eval``. math-verify hands it the numbers of an answer; should a
    path appear by which other text gets there, it ends here and not in the interpreter.
    """
    from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

    sympy_parser.eval = _eval_atoms


def _eval_atoms(source: str, *namespaces: Any) -> Any:
    tree = ast.parse(source.strip(), mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            is_known = isinstance(node.func, ast.Name) and node.func.id in _EVALUATED and not node.keywords
        else:
            is_known = isinstance(node, ast.Expression | ast.Name | ast.Constant | ast.Load)
        if not is_known:
            raise ValueError(f"refused to evaluate {type(node).__name__} in {source[:80]!r}")
    return eval(compile(tree, "<numbers and symbols>", "eval"), *namespaces)


def lock_down() -> None:
    """From now on this process may read files and compute; whatever else it tries raises `PermissionError`."""
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & _WRITING)
        if not writes:
            return
    elif not event.startswith(_FORBIDDEN_EVENTS):
        return
    raise PermissionError(f"the reward's worker refused {event}")


def limit_memory(num_bytes: int) -> None:
    """Cap the address space of this process."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def limit_cpu(seconds: float) -> None:
    """End this process after so much more CPU time, in case nobody is left to end it."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard < 0 else min(soft, hard), hard))


def serve() -> None:
    """Answer requests until standard input ends."""
    source = sys.stdin.buffer
    # Replies have a private descriptor: a library that prints must not end up between two of them.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    setup = read_message(source)
    if setup is None:
        return
    sys.path.extend(entry for entry in setup["sys_path"] if entry not in sys.path)
    limit_memory(setup["memory_bytes"])
    try:
        judge(r"\frac{1}{2}", "0.5")  # imports and builds everything once
    except ImportError as error:
        write_message(replies, {"error": str(error)})
        return
    guard_eval()
    lock_down()
    write_message(replies, {"ready": True})
    while (request := read_message(source)) is not None:
        limit_cpu(request["cpu_seconds"])
        try:
            verdict = judge(request["gold"], request["answer"])
        except MemoryError:
            # Out of memory is the other way to be too expensive; a fresh process takes over.
            write_message(replies, {"verdict": "timeout", "is_last": True})
            return
        except Exception:  # noqa: BLE001 - one comparison must not end the others; it is reported as `error`
            verdict = "error"
        write_message(replies, {"verdict": verdict})


if __name__ == "__main__":
    serve()
