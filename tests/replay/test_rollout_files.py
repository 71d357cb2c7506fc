"""Rollout files: exact, readable with pandas, makeable elsewhere, and every mistake named with file and row."""

import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from trajectory_samples import make_group, trajectories

from bapo_lightning.errors import InputError
from bapo_lightning.replay import group_trajectories, read_rollouts, write_rollouts
from bapo_lightning.replay.rollout_files import OPTIONAL, REQUIRED

DOCS = Path(__file__).resolve().parents[2] / "docs/rollout_files.md"


def plain(t):
    """What a file keeps: no advantage; a prompt's messages as JSON has them."""
    return replace(t, advantage=0.0, proximal_log_probs=None, prompt_ids=t.prompt_ids or (1,))


@st.composite
def groups(draw):
    made = []
    for group_id in range(draw(st.integers(1, 3))):
        prompt = draw(trajectories()).prompt
        size = draw(st.integers(2, 3))
        made += [plain(draw(trajectories(group_id, index, prompt))) for index in range(size)]
    return made


@given(made=groups())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_was_written_is_read(tmp_path_factory, made):
    path = tmp_path_factory.mktemp("rollouts") / "a.parquet"
    write_rollouts(path, made, temperature=0.7, max_new_tokens=9)
    found = read_rollouts(path)
    assert [t for group in found.groups for t in group] == made
    assert (found.temperature, found.max_new_tokens) == (0.7, 9)


def test_log_probs_that_float32_cannot_hold_stay_exact(tmp_path):
    group = make_group(0)
    group[0] = replace(group[0], completion=replace(group[0].completion, log_probs=(-0.1, -1e-12)))
    write_rollouts(tmp_path / "a.parquet", group, temperature=1.0, max_new_tokens=4)
    assert read_rollouts(tmp_path / "a.parquet").groups[0][0].completion.log_probs == (-0.1, -1e-12)


def test_a_folder_is_read_in_order_of_names_and_hashed(tmp_path):
    write_rollouts(tmp_path / "b.parquet", make_group(1), temperature=1.0, max_new_tokens=4)
    write_rollouts(tmp_path / "a.parquet", make_group(2), temperature=1.0, max_new_tokens=4)
    found = read_rollouts(tmp_path)
    assert [group[0].group_id for group in found.groups] == [2, 1]
    write_rollouts(tmp_path / "b.parquet", make_group(1, rewards=(1.0, 1.0)), temperature=1.0, max_new_tokens=4)
    assert read_rollouts(tmp_path).sha256 != found.sha256


def foreign(**changes):
    """Rows as someone else would make them, with required columns only."""
    rows = {
        "group_id": [7, 7, 9, 9],
        "prompt_ids": [[5, 6], [5, 6], [5], [5]],
        "token_ids": [[1, 2, 3], [4], [], [2, 2, 2, 2]],
        "log_probs": [[-0.5, -1.5, 0.0], [-2.0], [], [-1.0] * 4],
        "policy_versions": [[0, 0, 0], [0], [], [0] * 4],
        "reward": [1.0, 0.0, None, 0.5],
        "temperature": [1.0] * 4,
        "max_new_tokens": [4] * 4,
    }
    return pandas.DataFrame({**rows, **changes})


def test_a_file_made_elsewhere_loads(tmp_path):
    foreign().to_parquet(tmp_path / "theirs.parquet")
    found = read_rollouts(tmp_path / "theirs.parquet")
    first, second = found.groups
    assert [t.completion.token_ids for t in first] == [(1, 2, 3), (4,)]
    assert [t.completion.finish_reason for t in (*first, *second)] == ["stop", "stop", "stop", "length"]
    assert [t.reward for t in second] == [None, 0.5]
    assert [t.sample_index for t in second] == [0, 1]
    assert first[0].prompt.id == "group 7"
    assert first[0].prompt.source.endswith("theirs.parquet, row 0")
    assert group_trajectories(t for group in found.groups for t in group) == list(found.groups)


def cell(column, row, value):
    def change(frame):
        values = list(frame[column])
        values[row] = value
        frame[column] = pandas.Series(values, dtype=object)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop(columns="log_probs", inplace=True), ["no column 'log_probs'"]),
        (lambda f: f.rename(columns={"log_probs": "logprobs"}, inplace=True), ["'log_probs'", "'logprobs' meant"]),
        (cell("log_probs", 1, []), ["row 1", "1 token_ids, 0 log_probs"]),
        (cell("policy_versions", 0, [0, 0]), ["row 0", "2 policy_versions"]),
        (cell("log_probs", 1, None), ["row 1", "log_probs is missing"]),
        (cell("log_probs", 0, [-0.5, float("nan"), 0.0]), ["row 0", "log_probs[1]", "None"]),
        (cell("log_probs", 0, [-0.5, 0.7, 0.0]), ["row 0", "log_probs[1]", "0.7"]),
        (cell("policy_versions", 3, [0, 0, -1, 0]), ["row 3", "policy_versions[2]", "known version"]),
        (cell("policy_versions", 3, [0, 0, None, 0]), ["row 3", "policy_versions[2]"]),
        (cell("token_ids", 1, [-4]), ["row 1", "token_ids[0]"]),
        (cell("prompt_ids", 1, [5, 7]), ["row 1", "row 0", "prompt_ids"]),
        (cell("prompt_ids", 2, []), ["row 2", "prompt_ids is empty"]),
        (cell("group_id", 3, 11), ["group 9", "row 2", "baseline"]),
        (cell("temperature", 2, 0.5), ["row 2", "temperature", "0.5", "row 0"]),
        (cell("max_new_tokens", 0, 2), ["row 0", "3 tokens"]),
        (lambda f: f.assign(temperature=0.0), ["row 0", "temperature"]),
        (lambda f: f.assign(finish_reason="eos"), ["row 0", "finish_reason", "'eos'"]),
        (lambda f: f.assign(sample_index=0), ["row 1", "sample 0 of group 7", "row 0"]),
        (lambda f: f.assign(reward="good"), ["row 0", "reward", "'good'"]),
        (lambda f: f.assign(reward=float("inf")), ["row 0", "reward"]),
        (lambda f: f.assign(token_ids=3), ["row 0", "token_ids", "list"]),
        (lambda f: f.assign(messages="[1, 2]"), ["row 0", "messages"]),
        (lambda f: f.assign(messages=[[{"role": "user", "content": "2?"}]] * 4), ["row 0", "messages must be text"]),
        (lambda f: f.assign(prompt_id=5), ["row 0", "prompt_id must be text", "5"]),
        (lambda f: f.assign(group_id="a"), ["row 0", "group_id", "integer", "'a'"]),
        (lambda f: f.assign(group_id=[7.0, float("inf"), 9.0, 9.0]), ["row 1", "group_id", "integer", "inf"]),
        (lambda f: f.assign(group_id=7.5), ["row 0", "group_id", "integer", "7.5"]),
        (lambda f: f.assign(max_new_tokens=4.5), ["row 0", "max_new_tokens", "integer >= 1", "4.5"]),
        (lambda f: f.assign(sample_index="a"), ["row 0", "sample_index", "integer", "'a'"]),
        (lambda f: f.assign(sample_index=[0, -1, 0, 1]), ["row 1", "sample_index", "-1"]),
        (lambda f: f.assign(sampled_version="a"), ["row 0", "sampled_version", "integer", "'a'"]),
        (lambda f: f.assign(sampled_version=-1), ["row 0", "sampled_version", "-1"]),
        (lambda f: f.assign(finish_reason=""), ["row 0", "finish_reason", "''"]),
        (cell("token_ids", 1, [2**40]), ["row 1", "token_ids[0]", "2**31"]),
        (lambda f: f.assign(token_ids=[[True] * 3, [True], [], [True] * 4]), ["row 0", "token_ids[0]", "True"]),
        (lambda f: f.iloc[:0], ["no rows"]),
    ],
)
def test_mistakes_are_named_with_file_and_row(tmp_path, change, words):
    frame = foreign()
    changed = change(frame)
    path = tmp_path / "theirs.parquet"
    (frame if changed is None else changed).to_parquet(path)
    with pytest.raises(InputError) as caught:
        read_rollouts(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


def test_integers_that_pandas_made_floats_are_integers(tmp_path):
    """A gap in a column of integers makes floats of it; a gap is a value that is not stated."""
    foreign(group_id=[7.0, 7.0, 9.0, 9.0], sample_index=[0, 1, None, None], sampled_version=[None, 0, 0, 0]).to_parquet(
        tmp_path / "theirs.parquet"
    )
    found = read_rollouts(tmp_path / "theirs.parquet")
    assert [[(t.group_id, t.sample_index) for t in group] for group in found.groups] == [
        [(7, 0), (7, 1)],
        [(9, 0), (9, 1)],
    ]
    assert all(type(t.group_id) is int and type(t.sample_index) is int for group in found.groups for t in group)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, "{"], ids=["deep", "long number", "broken"])
def test_messages_that_are_no_json_are_plain_text(tmp_path, text):
    foreign(messages=text).to_parquet(tmp_path / "theirs.parquet")
    assert read_rollouts(tmp_path / "theirs.parquet").groups[0][0].prompt.messages == text


def test_columns_given_twice_and_text_that_is_not_utf8_are_named(tmp_path):
    path = tmp_path / "theirs.parquet"
    table = pyarrow.Table.from_pandas(foreign())
    parquet.write_table(table.append_column("reward", table["reward"]), path)
    with pytest.raises(InputError, match=r"theirs\.parquet has 2 columns 'reward'"):
        read_rollouts(path)
    latin = pyarrow.array([b"\xff"] * 4, pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(table.append_column("text", latin), path)
    with pytest.raises(InputError, match=r"theirs\.parquet: column 'text' cannot be read"):
        read_rollouts(path)


@pytest.mark.parametrize("compression", [None, "snappy"])
def test_a_damaged_file_never_ends_in_a_traceback(tmp_path, compression):
    """One byte is changed; what can still be read is read, all else is one message that names the file."""
    path = tmp_path / "theirs.parquet"
    foreign(text="2 + 2", finish_reason="stop", prompt_id="a").to_parquet(path, compression=compression)
    whole, draw = path.read_bytes(), random.Random(0)
    refusals = []
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            read_rollouts(path)
        except InputError as error:
            refusals.append(str(error))
    assert refusals
    assert all("theirs.parquet" in refusal for refusal in refusals)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    foreign().to_parquet(tmp_path / "theirs.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'bapo-lightning\[data\]'"):
        read_rollouts(tmp_path / "theirs.parquet")


def test_files_that_are_none_are_named(tmp_path):
    (tmp_path / "a.parquet").write_text("not Parquet")
    with pytest.raises(InputError, match=r"a\.parquet cannot be read as Parquet"):
        read_rollouts(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_rollouts(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "folder.parquet").mkdir()
    with pytest.raises(InputError, match=r"no \.parquet file"):
        read_rollouts(tmp_path / "empty")


def test_the_docs_list_every_column(tmp_path):
    """And pandas shows the types that the page states."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+?) \| (required|optional) \|", DOCS.read_text(), flags=re.MULTILINE)
    assert {name for name, _, need in rows if need == "required"} == set(REQUIRED)
    assert {name for name, _, need in rows if need == "optional"} == set(OPTIONAL)
    write_rollouts(tmp_path / "a.parquet", make_group(0), temperature=1.0, max_new_tokens=4)
    frame = pandas.read_parquet(tmp_path / "a.parquet")
    assert set(frame.columns) == {name for name, _, _ in rows}
    for name, stated, _ in rows:
        if not stated.startswith(("list", "string")):
            assert str(frame[name].dtype) == stated, name
    assert json.loads(frame["messages"][0]) == [{"role": "user", "content": "0?"}]
    assert list(frame["token_ids"][0]) == [0, 1]


def test_text_that_utf8_cannot_hold_is_written_all_the_same(tmp_path):
    group = [replace(t, text="half \ud83d of it") for t in make_group(0)]
    write_rollouts(tmp_path / "a.parquet", group, temperature=1.0, max_new_tokens=4)
    assert read_rollouts(tmp_path / "a.parquet").groups[0][0].text == "half ? of it"
