"""JSONL reading: rows with their line numbers, mistakes with file and line."""

import hashlib
import os

import pytest

from bapo_lightning.errors import InputError
from bapo_lightning.records import file_sha256, read_field, read_jsonl


def test_rows_come_with_line_numbers_and_blank_lines_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    # A byte-order mark, Windows line ends, a line separator inside a text, no newline at the end.
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n  \n{"a": "x\xe2\x80\xa8y"}\n{"a": null}')
    assert list(read_jsonl(path)) == [(1, {"a": 1}), (4, {"a": "x\u2028y"}), (5, {"a": None})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
        (b"\xef\xbb\xbf\n", "has no rows"),
        (b'{"a": 1}\n{"a": \n', r"bad\.jsonl:2: not valid JSON"),
        (b'{"a": 1}\n[1]\n', r"bad\.jsonl:2: expected a JSON object, got list"),
        (b'\n{"a": "\xff"}\n', r"bad\.jsonl:2: not UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", r"bad\.jsonl:1: JSON that cannot be read"),
        (b'{"a": ' + b"[" * 100_000, r"bad\.jsonl:1: "),
    ],
)
def test_mistakes_name_file_and_line(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_jsonl(path))


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl does not exist"):
        list(read_jsonl(tmp_path / "nowhere.jsonl"))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        list(read_jsonl(tmp_path))
    with pytest.raises(InputError, match="does not exist"):
        file_sha256(tmp_path / "nowhere.jsonl")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path):
    path = tmp_path / "secret.jsonl"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        list(read_jsonl(path))


def test_rows_before_a_broken_one_can_be_used(tmp_path):
    path = tmp_path / "half.jsonl"
    path.write_text('{"a": 1}\n{"a"')
    assert next(read_jsonl(path)) == (1, {"a": 1})


def test_fields():
    row = {"problem": "1+1", "solution": None}
    assert read_field(row, "problem", "f:3") == "1+1"
    with pytest.raises(
        InputError, match=r"f:3: no field 'problme'; did you mean 'problem'.* the row has 'problem', 's"
    ):
        read_field(row, "problme", "f:3")
    with pytest.raises(InputError, match="f:3: field 'solution' is null"):
        read_field(row, "solution", "f:3")
    with pytest.raises(InputError, match="no field 'x'; the row has no fields"):
        read_field({}, "x", "f:3")


def test_hash(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    assert file_sha256(path) == hashlib.sha256(b"abc").hexdigest()
