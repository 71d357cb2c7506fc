"""docs/your_own_strategy.md, done as it says: the file, the command, the help, the shadow."""

import re
from pathlib import Path

import pytest
import torch
from command import finish, start, write_config

DOCS = Path(__file__).resolve().parents[2] / "docs" / "your_own_strategy.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the tutorial's file in it."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.S)
    (tmp_path / "my_file.py").write_text(code, encoding="utf-8")
    body = code.partition("class MyClip")[2]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorials_strategy_trains(here, model_folder):
    config = write_config(here, model_folder())
    shadow = '[{"class_path": "FixedClip"}, {"class_path": "my_file.MyClip", "init_args": {"room": 0.25}}]'
    monitor = ["--trainer.callbacks+=EntropyClipMonitor", f"--trainer.callbacks.shadow={shadow}"]
    command = ["fit", "--config", config, "--model.clipping=my_file.MyClip", "--model.clipping.room=0.5", *monitor]
    code, output = finish(start(*command, cwd=here))
    assert code == 0, output
    assert "MyClip, 4 updates" in output
    saved = (here / "runs/test/version_0/config.yaml").read_text()
    assert "class_path: my_file.MyClip" in saved
    assert "room: 0.5" in saved


def test_its_arguments_have_a_help(here, model_folder):
    code, output = finish(start("fit", "--model.clipping.help=my_file.MyClip", cwd=here))
    assert code == 0, output
    assert "--model.clipping.room" in output


def test_a_mistake_in_its_arguments_is_one_message(here, model_folder):
    config = write_config(here, model_folder())
    code, output = finish(
        start("fit", "--config", config, "--model.clipping=my_file.MyClip", "--model.clipping.rom=0.5", cwd=here)
    )
    assert code == 2
    assert "rom" in output
    assert "Traceback" not in output


def test_the_tutorials_window_is_what_its_text_says(here, monkeypatch):
    """π = .8, room 1: up to 1.2; π = .1: up to 1.9."""
    monkeypatch.syspath_prepend(str(here))
    from my_file import MyClip

    log_probs = torch.tensor([[0.8, 0.1]]).log()
    bounds = MyClip().bounds(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), log_probs)
    torch.testing.assert_close(bounds.high, torch.tensor([[1.2, 1.9]]))
    assert bounds.value_share == 1.0
