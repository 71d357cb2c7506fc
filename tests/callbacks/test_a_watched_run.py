"""One real run, read back from its TensorBoard files: tags, x-axis, layout, samples, table."""

import json
import re
from pathlib import Path

import pytest
import yaml
from command import write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from bapo_lightning.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
CONTRACT = [
    *("rollout/reward", "rollout/success", "rollout/length", "policy/entropy", "policy/kl"),
    *("clip/bound_low", "clip/bound_high", "clip/fraction_low", "clip/fraction_high"),
    *("balance/value_share", "balance/gradient_share", "balance/token_share", "ratio/mean", "staleness/mean"),
    *("optim/grad_norm", "optim/lr"),
]


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    """Three phases of four updates with a benchmark every second phase; (folder, printed text)."""
    folder = tmp_path_factory.mktemp("watched")
    problem = folder / "one.jsonl"
    problem.write_text(json.dumps({"problem": "1+1=", "answer": "2"}) + "\n")
    benchmark = {"path": str(problem), "k": 2, "max_new_tokens": 6, "as_chat": False, "temperature": 1.0}
    path = write_config(
        folder,
        model_folder(),
        data={"inner_epochs": 2},
        trainer={
            "max_epochs": 3,
            "enable_progress_bar": True,
            "callbacks": [
                {
                    "class_path": "EntropyClipMonitor",
                    "init_args": {
                        "histogram_interval": 5,
                        "shadow": [
                            {"class_path": "BAPOClip"},
                            {"class_path": "ClipHigher", "init_args": {"high": 1.001}},
                            {"class_path": "ClipHigher"},
                            {"class_path": "TopEntropyTokens"},
                        ],
                    },
                },
                {"class_path": "AIMEEvaluation", "init_args": {"benchmarks": [benchmark], "every_n_phases": 2}},
            ],
        },
    )
    config = yaml.safe_load(path.read_text())
    config["model"]["clipping"] = {"class_path": "BAPOClip"}
    path.write_text(yaml.safe_dump(config))
    capture = pytest.MonkeyPatch()
    lines = []
    capture.setattr("builtins.print", lambda *a, **k: lines.append(" ".join(map(str, a))))
    try:
        assert main(["fit", "--config", str(path)]) == 0
    finally:
        capture.undo()
    return folder / "runs" / "test" / "version_0", "\n".join(lines)


@pytest.fixture(scope="module")
def events(run):
    accumulator = EventAccumulator(str(run[0]), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


@pytest.fixture(scope="module")
def curves(events):
    return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize("tag", CONTRACT)
def test_the_contracts_tags_are_there(curves, tag):
    assert curves[tag]


def test_every_curve_has_updates_as_its_x_axis(curves):
    """Traps 34, 35: the first update at 1; a phase at the updates before it; a benchmark at those of its weights."""
    for tag in ("policy/entropy", "clip/bound_low", "ratio/mean", "staleness/mean", "optim/lr", "optim/grad_norm"):
        assert sorted(curves[tag]) == list(range(1, 13)), tag
    for tag in ("rollout/reward", "rollout/length", "rollout/success", "rollout/phase"):
        assert sorted(curves[tag]) == [0, 4, 8], tag
    assert sorted(curves["val/one/avg@2"]) == [8]


def test_a_phase_starts_on_policy_and_grows_stale(curves):
    for update, staleness in zip(range(1, 13), [0, 1, 2, 3] * 3, strict=True):
        assert curves["staleness/mean"][update] == staleness
    for update in (1, 5, 9):
        assert curves["ratio/mean"][update] == pytest.approx(1.0, abs=1e-5)
        assert curves["policy/kl"][update] == pytest.approx(0.0, abs=1e-6)
        assert curves["clip/fraction_low"][update] == curves["clip/fraction_high"][update] == 0.0
    assert max(abs(curves["ratio/mean"][u] - 1) for u in (2, 3, 4)) > 1e-4


def test_a_shadow_of_the_trained_strategy_agrees_with_it(curves):
    for update in range(2, 13):
        for shadow, trained in {
            "fraction_low": "clip/fraction_low",
            "fraction_high": "clip/fraction_high",
            "bound_low": "clip/bound_low",
            "bound_high": "clip/bound_high",
            "value_share": "balance/value_share",
            "gradient_share": "balance/gradient_share",
        }.items():
            assert curves[f"shadow/BAPOClip/{shadow}"].get(update) == curves[trained].get(update), (shadow, update)
        assert curves["shadow/BAPOClip/disagreement"][update] == 0.0


def test_shadows_say_what_they_would_clip(curves):
    """A window [.8, 1.001] clips nearly every positive token that has risen; [.8, 1.28] clips fewer."""
    narrow, wide = curves["shadow/ClipHigher/fraction_high"], curves["shadow/ClipHigher_2/fraction_high"]
    assert max(narrow.values()) > 0.1
    assert all(narrow[update] >= wide[update] for update in narrow)
    assert curves["shadow/ClipHigher/bound_high"][3] == pytest.approx(1.001)
    # 80 % of tokens are left out, up to equals and rounding up; some of the others are clipped.
    clipped = curves["shadow/TopEntropyTokens/fraction_clipped"]
    assert all(0.5 < value < 1.0 for value in clipped.values())


def documented_tags():
    names = re.findall(r"`([a-z]+/[^`]+)`", DOCS.read_text())
    return {n for n in names if not n.endswith("/") and "_rollout" not in n}


def test_the_tags_of_a_run_are_the_documented_ones(curves):
    patterns = [
        re.sub(r"<\w+>", r"[\\w@./+-]+", re.escape(n).replace("\\<", "<").replace("\\>", ">"))
        for n in documented_tags()
    ]
    undocumented = [tag for tag in curves if not any(re.fullmatch(p, tag) for p in patterns)]
    # Lightning itself writes the epoch beside what goes through `self.log`.
    assert [tag for tag in undocumented if tag != "epoch"] == []
    optional = {"policy/kl_reference", "rollout/length_success", "rollout/length_failure", "time/rollout_wait_seconds"}
    unwritten = [n for n in documented_tags() if "<" not in n and n not in curves and n not in optional]
    assert [n for n in unwritten if not n.startswith("policy/probability_clipped")] == []


def test_the_custom_scalars_page_shows_curves_that_exist(events, curves):
    (tensor,) = events.Tensors("custom_scalars__config__")
    layout = Layout()
    layout.ParseFromString(tensor.tensor_proto.string_val[0])
    charts = [chart for category in layout.category for chart in category.chart]
    assert len(charts) == 10
    for chart in charts:
        for series in chart.margin.series:
            assert {series.value, series.lower, series.upper} <= curves.keys(), chart.title
        for pattern in chart.multiline.tag:
            assert any(re.search(pattern, tag) for tag in curves), chart.title
        assert chart.margin.series or chart.multiline.tag


def test_histograms_come_at_their_interval(events):
    assert {"histogram/ratio", "histogram/entropy", "histogram/advantage", "histogram/length", "histogram/age"} <= set(
        events.Tags()["histograms"]
    )
    assert [e.step for e in events.Histograms("histogram/entropy")] == [5, 10]


def test_samples_can_be_read(run, events):
    texts = events.Tensors("samples/rollouts/text_summary")
    assert [t.step for t in texts] == [0, 4, 8]
    text = texts[0].tensor_proto.string_val[0].decode()
    assert "| prompt | reward | status |" in text
    lines = [json.loads(line) for line in (run[0] / "samples/phase_00002.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert {"prompt", "response", "answer", "reward", "status", "length"} <= lines[0].keys()
    assert all(
        line["response"] in text
        for line in map(json.loads, (run[0] / "samples/phase_00000.jsonl").read_text().splitlines())
    )


def test_the_config_is_shown_whole(run, events):
    """B139: nested settings, lists and nulls are written as text, and none of them stops the run."""
    (tensor,) = events.Tensors("config/text_summary")
    text = tensor.tensor_proto.string_val[0].decode()
    assert (run[0] / "config.yaml").read_text() in text
    assert "low_start: 0.6" in text


def test_the_table_agrees_with_the_curves(run, curves):
    table = run[1]
    assert "BAPOClip, 12 updates" in table

    def row(name):
        return [float(x) for x in re.search(rf"^{re.escape(name)}\s+([\d.]+)\s+([\d.]+)$", table, re.M).groups()]

    def phase_mean(tag, updates):
        values = [curves[tag][u] for u in updates if u in curves[tag]]
        return sum(values) / len(values)

    assert row("success rate") == pytest.approx([curves["rollout/success"][0], curves["rollout/success"][8]], abs=6e-4)
    for name, tag in {
        "entropy (nats)": "policy/entropy",
        "c_low": "clip/bound_low",
        "c_high": "clip/bound_high",
    }.items():
        expected = [phase_mean(tag, range(1, 5)), phase_mean(tag, range(9, 13))]
        assert row(name) == pytest.approx(expected, abs=6e-4), name
    assert "tensorboard --logdir" in table


def test_the_benchmark_is_written_down(run):
    (result,) = json.loads((run[0] / "results.json").read_text())["results"]
    assert result["benchmark"] == "one"
    assert result["update"] == 8
    assert result["settings"]["k"] == 2
    assert (result["num_problems"], result["num_samples"]) == (1, 2)
    assert (run[0] / "samples/one_000008.jsonl").is_file()
