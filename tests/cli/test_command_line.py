"""`bapo` as a user types it: what resolves to what, and what a mistake gets."""

import itertools
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml
from command import write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bapo_lightning.cli import main
from bapo_lightning.module import PolicyModule

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
STRATEGIES = ("fixed", "bapo", "top_entropy", "decoupled")


@pytest.fixture
def config(model_folder, tmp_path):
    return write_config(tmp_path, model_folder())


@pytest.fixture
def resolved(capsys):
    """Parse a command line with the real parser; the config that would run."""

    def parse(*arguments):
        with pytest.raises(SystemExit) as done:
            main(["fit", *map(str, arguments), "--print_config"])
        assert done.value.code in (0, None)
        return yaml.safe_load(capsys.readouterr().out)

    return parse


@pytest.fixture
def refused(capsys):
    """Run a command line that must be refused; its message, which is one message and no traceback."""

    def run(*arguments):
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as done:
            code = done.code
        message = capsys.readouterr().err
        assert code == 2, message
        assert message.count("error:") == 1, message
        assert "Traceback" not in message
        return message

    return run


# --- what resolves to what ---


def test_a_then_b_is_b_alone_for_drop_ins(config, resolved):
    """Trap 5: every ordered pair of shipped drop-ins."""

    def with_drop_ins(*names):
        files = [part for name in names for part in ("--config", CONFIGS / f"clipping/{name}.yaml")]
        return resolved("--config", config, *files)

    alone = {name: with_drop_ins(name) for name in STRATEGIES}
    for first, second in itertools.permutations(STRATEGIES, 2):
        assert with_drop_ins(first, second) == alone[second], (first, second)


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(["FixedClip", "ClipHigher", "BAPOClip"], 2)))
def test_a_then_b_is_b_alone_for_flags(config, resolved, first, second):
    """B134: arguments of the old class, which the new one also accepts, do not survive."""
    both = resolved("--config", config, f"--model.clipping={first}", f"--model.clipping={second}")
    alone = resolved("--config", config, "--model.clipping=null", f"--model.clipping={second}")
    assert both["model"]["clipping"] == alone["model"]["clipping"]


def test_a_swapped_class_keeps_none_of_its_predecessors_values(config, resolved):
    """B134: the file says FixedClip with high 1.2; ClipHigher's own bound is 1.28."""
    clipping = resolved("--config", config, "--model.clipping=ClipHigher")["model"]["clipping"]
    assert clipping["init_args"] == {"low": 0.8, "high": 1.28}
    clipping = resolved("--config", config, "--model.clipping=ClipHigher", "--model.clipping.high=1.3")["model"][
        "clipping"
    ]
    assert clipping["init_args"] == {"low": 0.8, "high": 1.3}
    clipping = resolved("--config", config, "--model.clipping=BAPOClip")["model"]["clipping"]
    assert not {"low", "high"} & clipping["init_args"].keys()
    assert clipping["init_args"]["target"] == 0.4


def test_a_later_file_swaps_every_kind_of_class(config, resolved, tmp_path):
    later = tmp_path / "later.yaml"
    later.write_text("data: {engine: {class_path: ScriptedEngine, init_args: {answers: ['1']}}}\n")
    engine = resolved("--config", config, "--data.engine=HFEngine", "--data.engine.max_batch_size=7", "--config", later)
    assert engine["data"]["engine"]["init_args"] == {"answers": ["1"], "log_prob": -1.0, "append_stop_id": True}
    optimizer = resolved("--config", config, "--model.optimizer=torch.optim.SGD")["model"]["optimizer"]
    assert optimizer["init_args"]["lr"] == 0.001, "the earlier optimizer's 1e-2 must be gone"


@pytest.mark.parametrize("where", ["file", "flag"])
def test_scientific_notation_is_a_number(config, resolved, tmp_path, where):
    """B133: ``1e-6`` without a point, which YAML 1.1 reads as text."""
    later = tmp_path / "later.yaml"
    later.write_text("model: {optimizer: {init_args: {lr: 1e-6}}}\n")
    arguments = ["--config", later] if where == "file" else ["--model.optimizer.init_args.lr=1e-6"]
    assert resolved("--config", config, *arguments)["model"]["optimizer"]["init_args"]["lr"] == 1e-06


def test_interpolation_follows_later_values(config, resolved, tmp_path):
    """Trap 1: a later file or flag that changes the source is seen."""
    base = tmp_path / "base.yaml"
    base.write_text("data: {groups_per_phase: 4}\ntrainer: {max_steps: '${data.groups_per_phase}'}\n")
    later = tmp_path / "later.yaml"
    later.write_text("data: {groups_per_phase: 16}\n")
    assert resolved("--config", config, "--config", base)["trainer"]["max_steps"] == 4
    assert resolved("--config", config, "--config", base, "--config", later)["trainer"]["max_steps"] == 16
    flag = resolved("--config", config, "--config", base, "--data.groups_per_phase=8")
    assert flag["trainer"]["max_steps"] == 8


# --- what runs ---


def test_runs_reruns_and_starts_again_in_the_same_folder(config, tmp_path, capsys):
    """B131, B129, trap 3: the saved config reruns as is; a second start keeps the earlier, different config."""
    assert main(["fit", "--config", str(config)]) == 0
    folder = tmp_path / "runs" / "test" / "version_0"
    assert "success rate" in capsys.readouterr().out
    saved = folder / "config.yaml"
    text = saved.read_text()

    assert main(["fit", "--config", str(saved)]) == 0
    first = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    second = torch.load(tmp_path / "runs/test/version_1/checkpoints/last.ckpt", weights_only=True)
    assert first["global_step"] == second["global_step"] == 4
    assert all(torch.equal(value, second["state_dict"][name]) for name, value in first["state_dict"].items())

    again = ["fit", "--config", str(config), "--trainer.logger.init_args.version=0"]
    assert main([*again, "--model.max_grad_norm=0.5"]) == 0
    assert (folder / "config_1.yaml").read_text() == text
    assert yaml.safe_load(saved.read_text())["model"]["max_grad_norm"] == 0.5
    assert (folder / "checkpoints" / "last.ckpt").is_file()
    assert not (folder / "checkpoints" / "last-v1.ckpt").exists()


def test_the_command_line_beats_the_checkpoint(config, tmp_path):
    """Trap 2: what is typed is what runs, though the checkpoint remembers other hyper-parameters."""
    assert main(["fit", "--config", str(config), "--model.clipping=ClipHigher"]) == 0
    checkpoint = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    arguments = ["fit", "--config", str(config), "--ckpt_path", str(checkpoint), "--trainer.max_epochs=3"]
    assert main([*arguments, "--model.clipping.high=1.25"]) == 0
    saved = yaml.safe_load((tmp_path / "runs/test/version_1/config.yaml").read_text())
    assert saved["model"]["clipping"] == {
        "class_path": "bapo_lightning.clipping.FixedClip",
        "init_args": {"low": 0.8, "high": 1.25},
    }
    resumed = torch.load(tmp_path / "runs/test/version_1/checkpoints/last.ckpt", weights_only=True)
    assert resumed["global_step"] == 6


def test_a_strategy_of_ones_own_works_by_class_path(config, tmp_path):
    """What it does not measure is not logged; the run goes on."""
    own = ["--model.clipping=counting_task.WeightedREINFORCE", "--model.clipping.scale=2.0"]
    assert main(["fit", "--config", str(config), *own]) == 0
    saved = yaml.safe_load((tmp_path / "runs/test/version_0/config.yaml").read_text())
    assert saved["model"]["clipping"]["init_args"] == {"scale": 2.0}
    events = EventAccumulator(str(tmp_path / "runs/test/version_0"))
    events.Reload()
    assert not [tag for tag in events.Tags()["scalars"] if tag.startswith(("nonfinite/", "balance/value"))]


def test_classes_beside_the_config_are_found(config, resolved, tmp_path, monkeypatch):
    """As the installed command is started: the working folder is not on the path by itself."""
    (tmp_path / "strategy_in_a_file.py").write_text(
        "from bapo_lightning.clipping import ClipHigher\n\n\nclass Mine(ClipHigher):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [p for p in sys.path if p not in ("", str(tmp_path))])
    clipping = resolved("--config", config, "--model.clipping=strategy_in_a_file.Mine")["model"]["clipping"]
    assert clipping == {"class_path": "strategy_in_a_file.Mine", "init_args": {"low": 0.8, "high": 1.28}}


def test_callbacks_can_be_appended(config, resolved, tmp_path):
    """Trap 4: a drop-in's list replaces an earlier one unless it says ``callbacks+``."""
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("trainer: {callbacks: [{class_path: SampleWriter}]}\n")
    second.write_text("trainer: {callbacks+: [{class_path: EntropyClipMonitor}]}\n")
    callbacks = resolved("--config", config, "--config", first, "--config", second)["trainer"]["callbacks"]
    assert [c["class_path"].rpartition(".")[2] for c in callbacks] == ["SampleWriter", "EntropyClipMonitor"]


def test_a_checkpoint_of_the_command_line_loads_without_arguments(config, tmp_path):
    """Traps 6 and 8: nested objects are rebuilt from the settings in the checkpoint."""
    assert main(["fit", "--config", str(config), "--model.clipping=ClipHigher"]) == 0
    path = tmp_path / "runs/test/version_0/checkpoints/last.ckpt"
    module = PolicyModule.load_from_checkpoint(path)
    assert (type(module.clipping).__name__, module.clipping.high) == ("ClipHigher", 1.28)
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())


def test_seeds_repeat_and_differ(config, tmp_path):
    """B088: seeds 1, 1, 2."""
    for seed in (1, 1, 2):
        assert main(["fit", "--config", str(config), f"--seed_everything={seed}"]) == 0
    samples = [(tmp_path / f"runs/test/version_{v}/samples/phase_00000.jsonl").read_text() for v in range(3)]
    assert samples[0] == samples[1] != samples[2]


def test_predict_writes_a_line_a_prompt(config, tmp_path):
    assert main(["predict", "--config", str(config)]) == 0
    lines = (tmp_path / "runs/test/version_0/predictions.jsonl").read_text().splitlines()
    assert len(lines) == 12


# --- what a mistake gets ---


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--model.clippin=BAPOClip", ["model.clippin", "nearest", "model.clipping"]),
        ("--model.clipping=BAPOCli", ["model.clipping", "BAPOCli", "nearest", "BAPOClip"]),
        ("--model.clipping=no.such.Class", ["model.clipping", "no.such.Class"]),
        ("--model.clipping.hihg=1.3", ["hihg", "nearest", "high"]),
        ("--model.clipping.low=1.3", ["low", "1.3"]),
        ("--data.sampling.temperature=0", ["data.sampling.temperature", "> 0"]),
        ("--data.sampling.temperature=-1", ["temperature", "-1"]),
        ("--data.sampling.top_p=0.9", ["data.sampling", "top_p"]),
        ("--data.group_size=1", ["data.group_size", "1"]),
        ("--data.groups_per_update=3", ["groups_per_update", "groups_per_phase"]),
        ("--data.max_prompt_tokens=1", ["data.max_prompt_tokens", "drops all 12 prompts"]),
        ("--data.sampling.max_new_tokens=300", ["data.sampling", "max_new_tokens = 300", "256 positions"]),
        ("--model.policy.path=/no/such/folder", ["model.policy.path", "/no/such/folder"]),
        ("--model.policy.dtype=float8", ["model.policy.dtype", "float8"]),
        ("--trainer.gradient_clip_val=1.0", ["trainer.gradient_clip_val", "model.max_grad_norm"]),
        ("--trainer.accumulate_grad_batches=2", ["trainer.accumulate_grad_batches", "model.micro_batch_size"]),
        ("--trainer.reload_dataloaders_every_n_epochs=2", ["trainer.reload_dataloaders_every_n_epochs"]),
        ("--trainer.strategy=fsdp", ["trainer.strategy", "fsdp2"]),
        ("--trainer.precision=16-mixed", ["16-mixed", "bf16-mixed"]),
        ("--trainer.max_epochs=two", ["trainer.max_epochs", "int"]),
        ("--ckpt_path=/no/such.ckpt", ["ckpt_path", "/no/such.ckpt"]),
        ("--ckpt_path=last", ["ckpt_path=last", "last.ckpt"]),
        ("--model.optimizer.lr=-1", ["model.optimizer", "-1"]),
        ("--data.task=null", ["data.task", "None"]),
        ("--data.reward=counting_task.OneForAll", ["data.reward", "1 scores for 16 responses"]),
        ("--data.reward=counting_task.NeverScored", ["data.reward", "timeout 16"]),
    ],
)
def test_a_mistake_gets_one_message_that_names_it(config, refused, flag, words):
    message = refused("fit", "--config", config, flag)
    for word in words:
        assert word in message


def test_unknown_keys_in_files_are_named(config, refused, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("data: {groups_per_fase: 3}\n")
    message = refused("fit", "--config", config, "--config", bad)
    assert "groups_per_fase" in message
    assert "data.groups_per_phase" in message


def test_a_broken_yaml_names_file_and_line(config, refused, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text("data:\n  group_size: 4\n  task: {class_path: [\n")
    assert "bad.yaml:4" in refused("fit", "--config", config, "--config", bad)


@pytest.mark.parametrize(("text", "word"), [("", "nothing"), ("[1, 2]\n", "list")])
def test_a_config_without_keys_is_named(config, refused, tmp_path, text, word):
    bad = tmp_path / "bad.yaml"
    bad.write_text(text)
    message = refused("fit", "--config", config, "--config", bad)
    assert "bad.yaml" in message
    assert word in message


def test_a_finished_run_says_that_nothing_is_left(config, capsys):
    assert main(["fit", "--config", str(config)]) == 0
    capsys.readouterr()
    assert main(["fit", "--config", str(config), "--ckpt_path=last"]) == 0
    assert "no update was made: the run stands at update 4" in capsys.readouterr().out


def test_bounds_start_beyond_max_is_refused(config, refused):
    message = refused("fit", "--config", config, "--model.clipping=BAPOClip", "--model.clipping.low_start=0.95")
    assert "low_start" in message
    assert "low_max" in message


def test_a_run_folder_that_cannot_be_written_is_refused_first(config, refused, tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = refused("fit", "--config", config, f"--trainer.logger.init_args.save_dir={tmp_path / 'file'}")
    assert "trainer.logger" in message


def test_a_torn_checkpoint_is_refused_and_kept(config, refused, tmp_path):
    path = tmp_path / "torn.ckpt"
    torch.save({"global_step": 3, "state_dict": {"w": torch.zeros(1000)}}, path)
    path.write_bytes(path.read_bytes()[:2000])
    assert "damaged" in refused("fit", "--config", config, f"--ckpt_path={path}")
    assert path.stat().st_size == 2000


def test_a_checkpoint_of_another_model_is_refused(config, refused, model_folder):
    assert main(["fit", "--config", str(config)]) == 0
    path = config.parent / "runs/test/version_0/checkpoints/last.ckpt"
    before = path.read_bytes()
    message = refused("fit", "--config", config, f"--ckpt_path={path}", f"--model.policy.path={model_folder('llama')}")
    assert "of another model" in message
    assert path.read_bytes() == before


def test_validate_without_a_benchmark_says_what_is_missing(config, refused):
    assert "AIMEEvaluation" in refused("validate", "--config", config)


def test_an_unknown_command_lists_the_known_ones(refused):
    message = refused("fitt")
    assert "fitt" in message
    assert "fit" in message
    assert "validate" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.clipping=GSPO", "--model.clipping.high=4e-4"], "model.clipping: high must be a ratio bound >= 1"),
        (
            ["--model.clipping=TopEntropyTokens", "--model.clipping.inner=BAPOClip", "--model.clipping.inner.target=2"],
            "model.clipping.inner: target must lie in (0, 1)",
        ),
        (["--data.sampling.temperature=-1"], "data.sampling: temperature must be a finite number"),
        (["--model.clipping=MaskedIS", "--model.clipping.inner=HFEngine"], "HFEngine is a class of another kind"),
        (["--model.clipping=MaskedIS", "--model.clipping.inner.low=1"], "name a class for this key first"),
    ],
)
def test_a_refused_argument_is_named_by_its_whole_key(config, capsys, arguments, message):
    with pytest.raises(SystemExit) if "first" in message or "kind" in message else nullcontext():
        assert main(["fit", "--config", str(config), *arguments]) == 2
    assert message in capsys.readouterr().err
