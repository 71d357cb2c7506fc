"""Checkpoints on disk: data beside them, torn writes noticed, an earlier one always there."""

import os

import pytest
import torch
from command import finish, start, write_config
from hypothesis import given, settings
from hypothesis import strategies as st

from bapo_lightning.checkpoint_files import DATA_KEY, RunCheckpointIO
from bapo_lightning.cli import main
from bapo_lightning.errors import InputError


def read(path):
    return RunCheckpointIO().load_checkpoint(path, weights_only=True)


def save(folder, data, name="last.ckpt", step=1):
    folder.mkdir(exist_ok=True)
    checkpoint = {"state_dict": {"w": torch.tensor([1.0])}, "global_step": step, DATA_KEY: data}
    RunCheckpointIO().save_checkpoint(checkpoint, folder / name)
    return folder / name


def data_files(folder):
    return sorted(path.name for path in folder.glob("data-*"))


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


tensors = st.builds(
    lambda values, dtype: torch.tensor(values).to(dtype),
    st.lists(st.integers(0, 1), max_size=5) | st.integers(0, 1),
    st.sampled_from([torch.bool, torch.int32, torch.int64, torch.float32, torch.float64]),
)
plain = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text()
lists = st.lists(st.text()) | st.lists(st.integers()) | st.lists(st.dictionaries(st.text(), st.text()))
states = st.recursive(
    tensors | plain | lists, lambda inner: st.dictionaries(st.text("abc", max_size=3), inner, max_size=4), max_leaves=12
)


@given(state=st.dictionaries(st.text("xyz", min_size=1, max_size=3), states, max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_data_state_comes_back_as_it_was(tmp_path_factory, state):
    path = save(tmp_path_factory.mktemp("state"), state)
    assert same(read(path)[DATA_KEY], state)


STATE = {"buffer": {"ids": torch.arange(1000), "texts": ["é", "", "\ud800"]}, "phase": 3}


def test_the_big_parts_lie_beside_the_checkpoint(tmp_path):
    path = save(tmp_path, STATE)
    assert len(data_files(tmp_path)) == 1
    inside = torch.load(path, weights_only=True)[DATA_KEY]
    assert inside["state"]["phase"] == 3
    assert not isinstance(inside["state"]["buffer"]["ids"], torch.Tensor)
    # Moved as a whole, the folder still is a checkpoint.
    moved = tmp_path.parent / f"{tmp_path.name}_moved"
    tmp_path.rename(moved)
    assert same(read(moved / "last.ckpt")[DATA_KEY], STATE)


def test_an_unchanged_data_state_is_not_written_again(tmp_path):
    save(tmp_path, STATE, step=1)
    (name,) = data_files(tmp_path)
    before = (tmp_path / name).stat()
    save(tmp_path, STATE, step=2)
    after = (tmp_path / name).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert read(tmp_path / "last.ckpt")["global_step"] == 2
    assert read(tmp_path / "previous.ckpt")["global_step"] == 1


def test_data_files_stay_as_long_as_a_checkpoint_needs_them(tmp_path):
    def state(number):
        return {"ids": torch.tensor([number])}

    save(tmp_path, state(0), name="kept.ckpt")
    for number in range(1, 5):
        save(tmp_path, state(number), step=number)
    # That of kept.ckpt, of last.ckpt and of previous.ckpt.
    assert len(data_files(tmp_path)) == 3
    for name, number in (("kept.ckpt", 0), ("previous.ckpt", 3), ("last.ckpt", 4)):
        assert read(tmp_path / name)[DATA_KEY]["ids"].item() == number
    RunCheckpointIO().remove_checkpoint(tmp_path / "kept.ckpt")
    assert len(data_files(tmp_path)) == 2
    # A checkpoint that cannot be read may need any of them.
    (tmp_path / "strange.ckpt").write_bytes(b"?")
    save(tmp_path, state(5), step=5)
    assert len(data_files(tmp_path)) == 3


def test_what_a_killed_writer_left_is_cleared_away(tmp_path):
    (tmp_path / ".unfinished-1-last.ckpt").write_bytes(b"half")
    save(tmp_path, STATE)
    assert sorted(os.listdir(tmp_path)) == sorted([*data_files(tmp_path), "last.ckpt"])


@pytest.mark.parametrize("step", ["data", "link", "checkpoint"])
def test_a_write_that_ends_anywhere_leaves_a_whole_pair(tmp_path, monkeypatch, step):
    """The process dies at one of the renames: of the data, of the old checkpoint's second name, of the new one."""
    save(tmp_path, STATE, step=1)
    from pathlib import Path

    real, target = Path.replace, {"data": "data-", "link": "previous", "checkpoint": "last"}[step]

    def die(self, to):
        if Path(to).name.startswith(target):
            raise KeyboardInterrupt
        return real(self, to)

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, {"ids": torch.tensor([7])}, step=2)
    monkeypatch.undo()
    # The new one is in its place before the old one becomes the previous one, so that one pair is whole throughout.
    assert same(read(tmp_path / "last.ckpt")[DATA_KEY], {"ids": torch.tensor([7])} if step == "link" else STATE)


def test_a_full_disk_is_said_and_leaves_the_earlier_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, STATE, step=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"last\.ckpt cannot be written: .*No space left"):
        save(tmp_path, {"ids": torch.tensor([7])}, step=2)
    monkeypatch.undo()
    assert read(tmp_path / "last.ckpt")["global_step"] == 1
    assert not list(tmp_path.glob(".unfinished*"))


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


@pytest.mark.parametrize("damage", [flip_a_byte, cut, os.remove])
def test_a_damaged_data_file_is_named(tmp_path, damage):
    path = save(tmp_path, STATE)
    (name,) = data_files(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(InputError, match=name) as caught:
        read(path)
    assert "last.ckpt" in str(caught.value)


def test_other_checkpoints_are_left_to_lightning(tmp_path):
    io = RunCheckpointIO()
    io.save_checkpoint({"state_dict": {}, "global_step": 4}, tmp_path / "last.ckpt")
    assert io.load_checkpoint(tmp_path / "last.ckpt") == {"state_dict": {}, "global_step": 4}
    assert os.listdir(tmp_path) == ["last.ckpt"]


@pytest.fixture
def finished(model_folder, tmp_path):
    """A run of 2 phases that kept its last two checkpoints, and its config."""
    config = write_config(tmp_path, model_folder())
    assert main(["fit", "--config", str(config)]) == 0
    return config, tmp_path / "runs/test/version_0/checkpoints"


def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(finished, tmp_path, capsys):
    """The message says what is damaged and where the run goes on, and the run ends with the straight run's weights."""
    config, folder = finished
    more = ["fit", "--config", str(config), "--trainer.max_epochs=3"]
    assert main([*more, "--trainer.logger.init_args.name=straight"]) == 0
    cut(folder / "last.ckpt")
    capsys.readouterr()
    assert main([*more, "--ckpt_path", "last"]) == 0
    said = capsys.readouterr().err
    assert "last.ckpt" in said
    assert "is damaged" in said
    assert "previous.ckpt, after update 2" in said
    straight = read(tmp_path / "runs/straight/version_0/checkpoints/last.ckpt")
    again = read(folder / "last.ckpt")
    assert again["global_step"] == 6
    assert same(again["state_dict"], straight["state_dict"])
    assert same(again[DATA_KEY], straight[DATA_KEY])


def test_a_torn_data_file_gives_way_to_the_checkpoint_before(finished, capsys):
    config, folder = finished
    manifest = torch.load(folder / "last.ckpt", weights_only=True)[DATA_KEY]["file"]
    cut(folder / manifest["name"])
    more = ["fit", "--config", str(config), "--trainer.max_epochs=3"]
    # A path that was typed is not replaced by another; the message says what there is.
    assert main([*more, "--ckpt_path", str(folder / "last.ckpt")]) == 2
    assert "previous.ckpt" in capsys.readouterr().err
    assert main([*more, "--ckpt_path", "last"]) == 0
    assert manifest["name"] in capsys.readouterr().err


def test_two_damaged_checkpoints_are_both_named(finished, capsys):
    config, folder = finished
    cut(folder / "last.ckpt")
    cut(folder / "previous.ckpt")
    assert main(["fit", "--config", str(config), "--ckpt_path", "last"]) == 2
    said = capsys.readouterr().err
    assert "last.ckpt" in said
    assert "previous.ckpt" in said


def test_a_run_without_a_last_checkpoint_goes_on_from_the_one_before(finished, capsys):
    """As a file system without links leaves it for a moment."""
    config, folder = finished
    (folder / "last.ckpt").unlink()
    assert main(["fit", "--config", str(config), "--trainer.max_epochs=3", "--ckpt_path", "last"]) == 0
    assert "going on from" in capsys.readouterr().err


def test_ranks_read_the_data_file_that_one_of_them_wrote(model_folder, tmp_path):
    config = write_config(tmp_path, model_folder())
    two = ["--trainer.strategy=ddp", "--trainer.devices=2"]
    code, output = finish(start("fit", "--config", config, *two))
    assert code == 0, output
    folder = tmp_path / "runs/test/version_0/checkpoints"
    assert len(data_files(folder)) == 2
    code, output = finish(start("fit", "--config", config, *two, "--trainer.max_epochs=3", "--ckpt_path", "last"))
    assert code == 0, output
    assert read(folder / "last.ckpt")["global_step"] == 6
