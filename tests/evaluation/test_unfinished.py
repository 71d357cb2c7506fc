"""What an evaluation keeps while it is under way."""

import json

import pytest

from bapo_lightning.answering import Answer, AnswerRequest
from bapo_lightning.errors import InputError
from bapo_lightning.evaluation import UnfinishedAnswers
from bapo_lightning.types import Completion, Prompt, SamplingSettings, Score


def test_ranks_write_side_by_side_and_all_is_found(tmp_path):
    root = tmp_path / "unfinished"
    kept = UnfinishedAnswers(root, {"seed": 1})
    assert kept.load() == []
    kept.append([{"a": 1}], rank=0)
    kept.append([{"a": 2}, {"a": 3}], rank=3)
    kept.append([{"a": 4}], rank=0)
    assert UnfinishedAnswers(root, {"seed": 1}).load() == [{"a": 1}, {"a": 4}, {"a": 2}, {"a": 3}]
    assert UnfinishedAnswers(root, {"seed": 2}).load() == []
    kept.remove()
    assert list(tmp_path.iterdir()) == []
    kept.remove()


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_line_that_was_cut_off_costs_itself_only(tmp_path, cut, caplog):
    kept = UnfinishedAnswers(tmp_path, {})
    kept.append([{"a": 1}, {"a": 22}], rank=0)
    path = kept.folder / "rank_00000.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    survivors = [{"a": 1}, {"a": 22}] if cut == 1 else [{"a": 1}]
    assert kept.load() == survivors
    assert ("cut off" in caplog.text) is (1 < cut < 10)
    kept.append([{"a": 5}], rank=0)
    assert kept.load() == [*survivors, {"a": 5}]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"rank_00000\.jsonl cannot be written"):
        UnfinishedAnswers(tmp_path / "file", {}).append([{}], rank=0)


@pytest.mark.parametrize(
    "score", [Score(1.0, "correct", "5"), Score(float("nan"), "timeout"), Score(0.0, "wrong", "é\ud83d")]
)
def test_answers_come_back_as_they_were(score):
    request = AnswerRequest(Prompt("p", "q", "5"), 3, SamplingSettings())
    answer = Answer(request, Completion((4, 5), (-0.1, -1e-7), (8, 9), "length"), "text \x00 \ud83d", score)
    packed = json.loads(json.dumps(answer.pack()))
    again = Answer.unpack(packed, {answer.key: request})
    assert (again.request, again.completion, again.text) == (request, answer.completion, answer.text)
    assert repr(again.score) == repr(score)
