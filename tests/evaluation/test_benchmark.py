"""Reading benchmark files and dealing their problems to ranks (cases B140, B141)."""

import json
import logging

import pandas
import pytest
from jsonargparse import ArgumentParser

from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import Benchmark
from bapo_lightning.records import file_sha256


def write(folder, rows, name="bench.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def four(tmp_path):
    return write(tmp_path, [{"problem": f"{i} + 1", "answer": i + 1} for i in range(4)])


def test_problems_are_prompts(four):
    first = Benchmark(four).problems()[0]
    assert first.id == "bench/0"
    assert first.messages == ({"role": "user", "content": "0 + 1"},)
    assert first.answer == "1"
    assert first.source == f"{four}:1"


def test_defaults_are_those_of_the_paper(four):
    benchmark = Benchmark(four)
    assert (benchmark.name, benchmark.k, benchmark.sampling.temperature) == ("bench", 16, 0.6)
    assert benchmark.sampling.top_p == 1.0


def test_a_file_that_repeats_each_problem(tmp_path, caplog):
    """B140: 4 problems, each 3 times, k = 2: 4 problems, 8 samples; the repeats are reported."""
    rows = [{"problem": f"p{i}", "answer": str(i)} for i in range(4)] * 3
    benchmark = Benchmark(write(tmp_path, rows), k=2)
    with caplog.at_level(logging.WARNING):
        assert [prompt.messages[0]["content"] for prompt in benchmark.problems()] == ["p0", "p1", "p2", "p3"]
    assert len(benchmark.items()) == 8
    assert benchmark.data.repeated_rows == 8
    assert "12 rows hold 4 problems" in caplog.text


def test_repeats_side_by_side_and_with_other_spacing(tmp_path):
    rows = [
        {"problem": "p", "answer": "1"},
        {"problem": " p\n", "answer": " 1 "},
        {"problem": "q", "answer": "2"},
    ]
    benchmark = Benchmark(write(tmp_path, rows))
    assert [(p.id, p.answer) for p in benchmark.problems()] == [("bench/0", "1"), ("bench/1", "2")]


def test_repeats_with_another_answer_are_refused(tmp_path):
    rows = [{"problem": "p", "answer": "1"}, {"problem": "p", "answer": "2"}]
    with pytest.raises(
        InputError, match=r"bench\.jsonl:2: repeats the problem of .*bench\.jsonl:1 with another answer, '2'"
    ):
        Benchmark(write(tmp_path, rows)).problems()


@pytest.mark.parametrize("world_size", [1, 2, 4, 7, 31, 64])
def test_ranks_share_problems_without_padding(tmp_path, world_size):
    """B141: 30 problems on any number of ranks are 30 · k samples in all, each once, problems whole."""
    path = write(tmp_path, [{"problem": f"p{i}", "answer": "0"} for i in range(30)])
    benchmark = Benchmark(path, k=3)
    shares = [benchmark.items(rank, world_size) for rank in range(world_size)]
    pairs = [(prompt.id, index) for share in shares for prompt, index in share]
    assert sorted(pairs) == sorted((f"bench/{p}", i) for p in range(30) for i in range(3))
    assert all(len(share) % 3 == 0 for share in shares)
    assert max(map(len, shares)) - min(map(len, shares)) <= 3


def test_limit_name_fields_and_messages(tmp_path):
    rows = [
        {"question": "q?", "gold": 33.0},
        {"question": "r?", "gold": [r"\frac{1}{2}"]},
        {"question": "s?"},
    ]
    path = write(tmp_path, rows[:2])
    benchmark = Benchmark(
        path, name="mine", k=1, temperature=0.0, prompt_field="question", answer_field="gold",
        instruction="Box it.", system_prompt="Be brief.", limit=1,
    )  # fmt: skip
    (prompt,) = benchmark.problems()
    assert prompt.id == "mine/0"
    assert prompt.answer == "33"
    assert prompt.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "q?\nBox it."},
    )
    plain = Benchmark(path, prompt_field="question", answer_field="gold", as_chat=False)
    assert [p.messages for p in plain.problems()] == ["q?", "r?"]
    assert plain.problems()[1].answer == r"\frac{1}{2}"
    with pytest.raises(InputError, match=r"bench\.jsonl:3: no field 'gold'"):
        Benchmark(write(tmp_path, rows), prompt_field="question", answer_field="gold").problems()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"problem": "p"}, r":1: no field 'answer'"),
        ({"problem": "p", "answer": None}, r":1: field 'answer' is null"),
        ({"problem": "p", "answer": ""}, r":1: field 'answer' must be a text, a number"),
        ({"problem": "p", "answer": True}, r":1: field 'answer' must be"),
        ({"problem": "p", "answer": float("nan")}, r":1: field 'answer' must be"),
        ({"problem": "p", "answer": ["1", "2"]}, r":1: field 'answer' must be .* got \['1', '2'\]"),
        ({"problem": "p", "answer": []}, r":1: field 'answer' must be"),
        ({"problem": " ", "answer": "1"}, r":1: field 'problem' must be a non-empty text"),
        ({"problem": 5, "answer": "1"}, r":1: field 'problem' must be"),
        ({"question": "p", "answer": "1"}, r":1: no field 'problem'; the row has 'question', 'answer'"),
    ],
)
def test_bad_rows_name_file_and_line(tmp_path, row, message):
    with pytest.raises(InputError, match=message):
        Benchmark(write(tmp_path, [row])).problems()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 0}, "benchmark x: k must be at least 1, got 0"),
        ({"temperature": 0.0}, "temperature 0 gives 16 times the same response; use k: 1"),
        ({"temperature": -1.0}, "benchmark x: temperature must be a finite number"),
        ({"top_p": 0.0}, "benchmark x: top_p"),
        ({"max_new_tokens": 0}, "benchmark x: max_new_tokens"),
        ({"pass_at": [1, 17]}, "benchmark x: pass_at must lie in 1 … k = 16, got 17"),
        ({"pass_at": [0]}, "pass_at must lie in 1 … k = 16, got 0"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"name": "a/b"}, "name of a benchmark"),
        ({"system_prompt": "s", "as_chat": False}, "system_prompt needs as_chat: true"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        Benchmark("x.jsonl", **settings)


def test_the_file_is_read_at_first_use_only():
    benchmark = Benchmark("nowhere/x.jsonl")
    with pytest.raises(InputError, match=r"nowhere/x\.jsonl does not exist"):
        benchmark.problems()


def test_parquet_and_data_sets_hold_the_same_problems(tmp_path):
    """A folder of data files goes through the reader of the hub."""
    rows = [{"problem": f"p{i}", "answer": str(i)} for i in range(3)] * 2
    write(tmp_path, rows)
    pandas.DataFrame(rows).to_parquet(tmp_path / "bench.parquet")
    folder = tmp_path / "org" / "bench.v1"
    folder.mkdir(parents=True)
    write(folder, rows, name="test.jsonl")
    files = [Benchmark(str(tmp_path / f"bench.{ending}"), k=2) for ending in ("jsonl", "parquet")]
    hub = Benchmark(str(folder), k=2)
    assert (hub.name, files[1].name) == ("bench.v1", "bench")
    for benchmark in (*files, hub):
        assert [(p.messages[0]["content"], p.answer) for p in benchmark.problems()] == [
            ("p0", "0"),
            ("p1", "1"),
            ("p2", "2"),
        ]
        assert benchmark.data.repeated_rows == 3
        assert len(benchmark.data.sha256) == 64
    assert hub.settings()["split"] == "test"
    assert "split" not in files[0].settings()
    other = Benchmark(str(folder), k=2, split="train")
    with pytest.raises(InputError, match=r"benchmark bench\.v1: cannot load .*\[train\]"):
        other.problems()


def test_what_is_neither_a_file_nor_a_data_set_is_named(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match=r"benchmark aime99: cannot load nobody/aime99\[test\]"):
        Benchmark("nobody/aime99").problems()


def test_built_from_yaml(four):
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--benchmarks", type=list[Benchmark])
    arguments = f"{{path: {four}, k: 1, temperature: 0}}"
    text = f"[{{class_path: bapo_lightning.evaluation.Benchmark, init_args: {arguments}}}]"
    (benchmark,) = parser.instantiate(parser.parse_args(["--benchmarks", text])).benchmarks
    assert len(benchmark.items()) == 4


@pytest.mark.parametrize(("name", "count"), [("aime24", 30), ("aime25", 30), ("amc2023", 40), ("math500", 500)])
def test_real_benchmarks(shared_dir, name, count):
    path = shared_dir / "data" / f"{name}.jsonl"
    benchmark = Benchmark(str(path))
    assert len(benchmark.problems()) == len({p.id for p in benchmark.problems()}) == count
    assert benchmark.data.repeated_rows == 0
    assert benchmark.data.sha256 == file_sha256(path)
    assert all(p.answer for p in benchmark.problems())
