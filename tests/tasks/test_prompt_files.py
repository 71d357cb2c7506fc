"""Prompts from JSONL, Parquet and the hub's loader: real schemas, and one message for what is wrong."""

import json

import pytest

from bapo_lightning.errors import InputError
from bapo_lightning.tasks import HubPrompts, JSONLPrompts, ParquetPrompts

SKYWORK = [
    {
        "data_source": "train-math-deepscaler",
        "prompt": [{"role": "user", "content": "How many?"}],
        "ability": "math",
        "reward_model": {"ground_truth": '["70"]', "style": "rule"},
        "extra_info": {"index": 7, "model_difficulty": {"DeepSeek-R1-Distill-Qwen-7B": 3}},
    },
    {
        "data_source": "train-math-deepscaler",
        "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Why?"}],
        "ability": "math",
        "reward_model": {"ground_truth": '["\\\\frac{1}{2}"]', "style": "rule"},
        "extra_info": {"index": 9, "model_difficulty": {"DeepSeek-R1-Distill-Qwen-7B": 0}},
    },
]
DAPO = [
    {
        "data_source": "math_dapo",
        "prompt": [{"content": "Find x.", "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    }
]
NESTED = {"prompt_field": "prompt", "answer_field": "reward_model.ground_truth"}


def write_lines(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_parquet(path, rows):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
@pytest.mark.parametrize("rows", [SKYWORK, DAPO], ids=["skywork", "dapo"])
def test_the_schemas_of_skywork_and_dapo_load(tmp_path, kind, rows):
    """B013: a gold as a JSON list in a string is unwrapped; messages keep their roles and order."""
    if kind == "jsonl":
        task = JSONLPrompts(write_lines(tmp_path / "train.jsonl", *map(json.dumps, rows)), **NESTED)
    elif kind == "parquet":
        task = ParquetPrompts(write_parquet(tmp_path / "train.parquet", rows), **NESTED)
    else:
        folder = tmp_path / "data"
        folder.mkdir()
        write_parquet(folder / "train.parquet", rows)
        task = HubPrompts(str(folder), **NESTED)
    prompts = task.load()
    assert [p.answer for p in prompts] == (["70", "\\frac{1}{2}"] if rows is SKYWORK else ["34"])
    assert [list(map(dict, p.messages)) for p in prompts] == [
        [{"role": m["role"], "content": m["content"]} for m in row["prompt"]] for row in rows
    ]
    assert len({p.id for p in prompts}) == len(rows)


def test_ids_may_come_from_a_nested_field(tmp_path):
    path = write_lines(tmp_path / "train.jsonl", *map(json.dumps, SKYWORK))
    assert [p.id for p in JSONLPrompts(path, id_field="extra_info.index", **NESTED).load()] == ["7", "9"]
    twice = write_lines(tmp_path / "twice.jsonl", json.dumps(DAPO[0]), json.dumps(DAPO[0]))
    with pytest.raises(InputError, match=r"twice\.jsonl:2.*twice\.jsonl:1"):
        JSONLPrompts(twice, id_field="extra_info.index", **NESTED).load()


def test_the_plain_schema_and_its_options(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", '{"problem": "1+1", "answer": 2}', "", '{"problem": "1+2", "answer": 3.0}')
    first, second = JSONLPrompts(path).load()
    assert (first.id, first.messages, first.answer) == ("a/1", ({"role": "user", "content": "1+1"},), "2")
    assert (second.id, second.answer, second.source) == ("a/3", "3", f"{path}:3")
    (only,) = JSONLPrompts(path, limit=1, system_prompt="Be brief.", instruction="Box it.").load()
    assert only.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1+1\nBox it."},
    )
    assert JSONLPrompts(path, limit=1, as_chat=False).load()[0].messages == "1+1"


def test_benchmark_files_load(shared_dir):
    assert len(JSONLPrompts(str(shared_dir / "data" / "aime24.jsonl")).load()) == 30


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        ('["70"]', "70"),
        ("['70']", "70"),
        (["70"], "70"),
        (70, "70"),
        (70.0, "70"),
        (0.5, "0.5"),
        # Not lists of texts but answers: an interval, a vector.
        ("[1, 2]", "[1, 2]"),
        ("[0, \\infty)", "[0, \\infty)"),
    ],
)
def test_golds_in_every_spelling(tmp_path, gold, text):
    path = write_lines(tmp_path / "a.jsonl", json.dumps({"problem": "x", "answer": gold}))
    assert JSONLPrompts(path).load()[0].answer == text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"problem": "x", "answer": "1"', ["a.jsonl:2", "JSON"]),
        ('{"problem": "x"}', ["a.jsonl:2", "'answer'", "'problem'"]),
        ('{"problem": "x", "answr": "1"}', ["a.jsonl:2", "did you mean 'answr'"]),
        ('{"problem": "x", "answer": null}', ["a.jsonl:2", "null"]),
        ('{"problem": "x", "answer": " "}', ["a.jsonl:2", "answer", "empty"]),
        ('{"problem": "x", "answer": ["1", "2"]}', ["a.jsonl:2", "one gold answer"]),
        ('{"problem": "x", "answer": true}', ["a.jsonl:2", "True"]),
        ('{"problem": "", "answer": "1"}', ["a.jsonl:2", "problem", "empty"]),
        ('{"problem": 5, "answer": "1"}', ["a.jsonl:2", "problem", "int"]),
        ('{"problem": [{"role": "user"}], "answer": "1"}', ["a.jsonl:2", "content"]),
        ("[1, 2]", ["a.jsonl:2", "object"]),
    ],
)
def test_a_bad_row_names_file_and_line(tmp_path, line, words):
    path = write_lines(tmp_path / "a.jsonl", '{"problem": "x", "answer": "1"}', line)
    with pytest.raises(InputError) as caught:
        JSONLPrompts(path).load()
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_missing_empty_and_broken_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"no\.jsonl does not exist"):
        JSONLPrompts(str(tmp_path / "no.jsonl")).load()
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InputError, match=r"empty\.jsonl has no rows"):
        JSONLPrompts(str(tmp_path / "empty.jsonl")).load()
    (tmp_path / "latin.jsonl").write_bytes('{"problem": "é", "answer": "1"}'.encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.jsonl:1.*UTF-8"):
        JSONLPrompts(str(tmp_path / "latin.jsonl")).load()
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    with pytest.raises(InputError, match=r"bad\.parquet cannot be read as Parquet"):
        ParquetPrompts(str(tmp_path / "bad.parquet")).load()
    with pytest.raises(InputError, match=r"no\.parquet does not exist"):
        ParquetPrompts(str(tmp_path / "no.parquet")).load()
    path = write_parquet(tmp_path / "a.parquet", [{"problem": "x", "solution": "1"}])
    with pytest.raises(InputError, match=r"a\.parquet, row 0: no field 'answer'"):
        ParquetPrompts(path).load()


def test_a_data_set_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"data\.task\.repo.*no_such"):
        HubPrompts(str(tmp_path / "no_such")).load()


@pytest.mark.parametrize("settings", [{"limit": 0}, {"system_prompt": "x", "as_chat": False}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        JSONLPrompts("x.jsonl", **settings)
