"""Checkpoints that a disk damaged: noticed, never trusted again, and never in the place of a whole one."""

import os
import resource
import signal
import zipfile

import pytest
import torch
from command import write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bapo_lightning.checkpoint_files import DATA_KEY, RunCheckpointIO
from bapo_lightning.cli import main
from bapo_lightning.errors import InputError
from bapo_lightning.runs import RunFolder, inspect_checkpoint


@pytest.fixture
def checkpoints(tmp_path):
    """The checkpoint folder of a run that `RunFolder(tmp_path, None)` finds."""
    folder = tmp_path / "version_0/checkpoints"
    folder.mkdir(parents=True)
    return folder


def save(folder, step, data=None, size=1000):
    checkpoint = {"state_dict": {"w": torch.full((size,), float(step))}, "global_step": step, DATA_KEY: data or {}}
    RunCheckpointIO().save_checkpoint(checkpoint, folder / "last.ckpt")
    return folder / "last.ckpt"


def cut(path):
    path.write_bytes(path.read_bytes()[:700])


def overwrite(path, start, length):
    """Zeros in the middle of a file, as a page that never reached the disk."""
    content = bytearray(path.read_bytes())
    content[start : start + length] = bytes(length)
    path.write_bytes(content)


x = torch.arange(6)


@pytest.mark.parametrize(
    "state",
    [
        {"a": {"b": x}, "a.b": x + 1},
        {"a": {1: x, "1": x + 1}},
        {"a": x, "b": x, "c": x[2:], "d": x.view(2, 3).T},
        {"a": [x, (x, [x.bool()])]},
        {"records": [{1: "number as key"}], "with a tensor": [{"x": x}]},
        {"records": [{"messages": ("a", "tuple")}], "nested": [[{"id": "p"}], ["text"]]},
        {"records": [{"id": "p", "answer": ["1", "2"], "source": None}], "texts": ["", "\ud800", "é\0"]},
        {"empty": [[], (), {}, torch.zeros(0, 3)], "scalar": torch.tensor(0.1, dtype=torch.float64)},
        {"half": torch.tensor([0.1, float("nan")]).bfloat16(), "flags": (True, 1, 1.0, None)},
    ],
)
def test_states_of_any_shape_come_back_as_they_were(checkpoints, state):
    path = save(checkpoints, 1, state)
    assert_same(RunCheckpointIO().load_checkpoint(path, weights_only=True)[DATA_KEY], state)


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def test_a_damaged_data_file_is_written_again(checkpoints):
    """Its name says what was written, not what is there; a run that comes to the same state must not rely on it."""
    save(checkpoints, 1, {"x": x})
    (data,) = checkpoints.glob("data-*")
    content = bytearray(data.read_bytes())
    content[-8] ^= 1
    data.write_bytes(content)
    path = save(checkpoints, 2, {"x": x})
    assert torch.equal(RunCheckpointIO().load_checkpoint(path, weights_only=True)[DATA_KEY]["x"], x)


@pytest.mark.parametrize("damage", ["cut", "data file gone"])
def test_a_damaged_last_checkpoint_never_takes_the_place_of_the_one_before(checkpoints, tmp_path, monkeypatch, damage):
    """After falling back, the first save is killed while it puts the new checkpoint in place; then it is repeated."""
    save(checkpoints, 1, {"x": x})
    last = save(checkpoints, 2, {"x": x + 1})
    if damage == "cut":
        cut(last)
    else:
        manifest = torch.load(last, weights_only=True)[DATA_KEY]["file"]
        (checkpoints / manifest["name"]).unlink()
    replace = os.replace

    def killed(source, target):
        if str(target).endswith("last.ckpt"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save(checkpoints, 3, {"x": x + 2})
    monkeypatch.undo()
    assert RunFolder(tmp_path, None).find_last() == (0, last.with_name("previous.ckpt"), 1)
    save(checkpoints, 3, {"x": x + 2})
    assert [inspect_checkpoint(checkpoints / name) for name in ("last.ckpt", "previous.ckpt")] == [3, 1]
    save(checkpoints, 4, {"x": x + 3})
    assert [inspect_checkpoint(checkpoints / name) for name in ("last.ckpt", "previous.ckpt")] == [4, 3]


def test_without_links_the_one_before_is_kept_too(checkpoints, monkeypatch):
    def refused(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refused)
    for step in (1, 2, 3):
        save(checkpoints, step, {"x": x + step})
    assert [inspect_checkpoint(checkpoints / name) for name in ("last.ckpt", "previous.ckpt")] == [3, 2]
    assert len(os.listdir(checkpoints)) == 4


def test_zeros_among_the_weights_are_noticed(checkpoints, tmp_path, capsys):
    """The archive opens and has its length, so torch would load them."""
    save(checkpoints, 1)
    last = save(checkpoints, 2)
    with zipfile.ZipFile(last) as archive:
        start = next(entry.header_offset for entry in archive.infolist() if entry.filename.endswith("data/0"))
    overwrite(last, start + 500, 1000)
    assert torch.load(last, weights_only=True)["global_step"] == 2
    assert RunFolder(tmp_path, None).find_last() == (0, last.with_name("previous.ckpt"), 1)
    said = capsys.readouterr().err
    assert "last.ckpt' is damaged: the check sum of" in said
    assert "previous.ckpt, after update 1" in said


@pytest.mark.parametrize("whole", [True, False])
def test_a_typed_path_that_is_damaged_names_the_one_before_if_that_is_whole(checkpoints, whole):
    save(checkpoints, 1)
    last = save(checkpoints, 2)
    cut(last)
    if not whole:
        cut(last.with_name("previous.ckpt"))
    with pytest.raises(InputError, match="cannot be used either" if not whole else r"previous\.ckpt, after update 1"):
        inspect_checkpoint(last)


@pytest.mark.parametrize(("limit", "part"), [(3000, "data"), (13000, "checkpoint")])
def test_a_disk_that_fills_up_in_the_middle_of_a_write_is_said(checkpoints, limit, part):
    """Where torch closes its archive over the error of the disk, too."""
    state = {"x": x}
    last = save(checkpoints, 1, state)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(InputError, match=r"last\.ckpt cannot be written: .*File too large"):
            save(checkpoints, 2, {"x": torch.arange(10_000)} if part == "data" else state, size=100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert inspect_checkpoint(last) == 1
    assert len(os.listdir(checkpoints)) == 2


def test_the_curves_are_on_disk_before_the_checkpoint(model_folder, tmp_path, monkeypatch):
    """Killed right after it, the run goes on behind the newest point, without a gap."""
    seen = {}
    write = RunCheckpointIO.save_checkpoint

    def look(self, checkpoint, path, storage_options=None):
        events = EventAccumulator(str(tmp_path / "runs/test/version_0"), size_guidance={"scalars": 0})
        events.Reload()
        seen[checkpoint["global_step"]] = [event.step for event in events.Scalars("policy/entropy")]
        write(self, checkpoint, path, storage_options)

    monkeypatch.setattr(RunCheckpointIO, "save_checkpoint", look)
    newest = {"class_path": "NewestCheckpoint", "init_args": {"every_n_updates": 1}}
    config = write_config(tmp_path, model_folder(), trainer={"callbacks": [newest]})
    assert main(["fit", "--config", str(config)]) == 0
    assert seen == {step: list(range(1, step + 1)) for step in (1, 2, 3, 4)}


@pytest.mark.parametrize("place", ["plugins", "strategy"])
def test_a_way_of_writing_that_the_user_lists_wins(model_folder, tmp_path, place):
    own = {"class_path": "lightning.pytorch.plugins.io.TorchCheckpointIO"}
    single = {"class_path": "lightning.pytorch.strategies.SingleDeviceStrategy"}
    given = {"plugins": [own]} if place == "plugins" else {"strategy": {**single, "init_args": {"checkpoint_io": own}}}
    config = write_config(tmp_path, model_folder(), trainer=given)
    assert main(["fit", "--config", str(config)]) == 0
    folder = tmp_path / "runs/test/version_0/checkpoints"
    assert os.listdir(folder) == ["last.ckpt"]
    assert main(["fit", "--config", str(config), "--ckpt_path=last", "--trainer.max_epochs=3"]) == 0
    assert inspect_checkpoint(folder / "last.ckpt") == 6
