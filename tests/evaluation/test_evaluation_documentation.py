"""docs/evaluation.md lists what is really written."""

import json
import re
from pathlib import Path

import pandas
import yaml
from command import write_config

from bapo_lightning.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs" / "evaluation.md"


def documented(section):
    text = DOCS.read_text(encoding="utf-8").partition(f"## {section}")[2].partition("\n## ")[0]
    return [
        name for row in re.findall(r"^\| (`[^|]+) \|", text, flags=re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    ]


def test_fields_and_columns_are_the_documented_ones(tmp_path, model_folder):
    bench = tmp_path / "bench.jsonl"
    bench.write_text('{"problem": "1+1=", "answer": "2"}\n')
    benchmark = {"path": str(bench), "k": 2, "max_new_tokens": 4, "as_chat": False}
    callback = {"class_path": "AIMEEvaluation", "init_args": {"benchmarks": [benchmark]}}
    config = write_config(tmp_path, model_folder(), trainer={"callbacks": [callback]})
    content = yaml.safe_load(config.read_text())
    content["data"]["reward"] = {"class_path": "MathReward"}
    config.write_text(yaml.safe_dump(content))
    assert main(["validate", "--config", str(config)]) == 0
    run = tmp_path / "runs/test/version_0"
    (record,) = json.loads((run / "results.json").read_text())["results"]
    assert documented("results.json") == list(record)
    assert f"`{'`, `'.join(list(record['made_by'])[:4])}`" in DOCS.read_text()
    assert set(record["made_by"]) <= set(re.findall(r"`(\w+)`", DOCS.read_text()))
    assert record["made_by"]["first_prompt"].endswith("1+1=")
    assert record["made_by"]["reward"]["plain_text"] is True
    frame = pandas.read_parquet(run / "samples/bench_000000.parquet")
    assert documented("samples/<benchmark>_<updates>.parquet") == list(frame.columns)
