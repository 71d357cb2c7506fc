"""The project as a whole: direction of imports, start-up, shipped configs, packaging, papers."""

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import bapo_lightning

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
DROP_IN_FOLDERS = ("clipping", "evaluation", "hardware", "off_policy")
HEAVY = ("torch", "lightning", "transformers")


def run(*command: object, cwd: Path = ROOT, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)


# --- code ---------------------------------------------------------------------------------------------------------


def test_imports_point_one_way():
    start = "from importlinter.cli import lint_imports_command as main; main()"
    done = run(sys.executable, "-c", start, "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", ["bapo_lightning", "bapo_lightning.cli", "bapo_lightning.errors"])
def test_import_stays_light(module):
    done = run(sys.executable, "-c", f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_command_answers_within_3_seconds_and_without_torch(flag):
    started = time.monotonic()
    done = run(sys.executable, "-X", "importtime", "-m", "bapo_lightning.cli", flag)
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    assert "bapo" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert imported.isdisjoint(HEAVY)
    assert seconds < 3


def test_no_file_is_longer_than_400_lines():
    files = [file for folder in ("src", "tests", "scripts", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    lengths = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert len(lengths) > 50
    assert {name: length for name, length in lengths.items() if length > 400} == {}


def test_every_package_says_what_belongs_there():
    for file in (ROOT / "src").rglob("__init__.py"):
        assert file.read_text(encoding="utf-8").startswith(('"""', 'r"""')), f"{file} has no docstring"


# --- configs ------------------------------------------------------------------------------------------------------


def shipped_configs() -> list[str]:
    return sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))


def test_configs_are_found():
    assert {"quickstart.yaml", "clipping/bapo.yaml", "off_policy/partial.yaml"} <= set(shipped_configs())


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_config_is_read_by_the_command(name, capsys, monkeypatch):
    """A drop-in changes a few keys, so it is read on top of the quickstart; everything else stands alone."""
    from bapo_lightning.training_cli import run as run_command

    monkeypatch.chdir(ROOT)
    files = [f"--config={CONFIGS / name}"]
    if name.startswith(DROP_IN_FOLDERS):
        files.insert(0, f"--config={CONFIGS / 'quickstart.yaml'}")
    with pytest.raises(SystemExit) as exit_info:
        run_command(["fit", *files, "--print_config"])
    captured = capsys.readouterr()
    assert exit_info.value.code in (0, None), captured.err
    resolved = yaml.safe_load(captured.out)
    stated = yaml.safe_load((CONFIGS / name).read_text(encoding="utf-8"))
    assert stated.keys() <= resolved.keys()
    assert "clipping" in resolved["model"]


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_config_opens_with_a_comment(name):
    assert (CONFIGS / name).read_text(encoding="utf-8").startswith("# ")


# --- papers -------------------------------------------------------------------------------------------------------


def pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert pyproject()["project"]["version"] == bapo_lightning.__version__ == citation["version"]


def test_citation_names_the_software_the_paper_and_the_other_bapo():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["type"] == "software"
    assert citation["title"].startswith("bapo_lightning")
    (paper,) = citation["references"]
    assert paper["title"].startswith("BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs")
    assert paper["url"].endswith("2510.18927")
    assert (len(paper["authors"]), paper["authors"][0]["family-names"]) == (21, "Xi")
    assert "2602.20722" in citation["message"]


def test_licence_is_the_one_named():
    assert pyproject()["project"]["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_constraints_pin_exact_releases_that_pyproject_allows():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {}
    for line in lines:
        if line and not line.startswith("#"):
            match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9A-Za-z.]+)", line)
            assert match, f"not an exact pin without local version: {line}"
            pins[canonicalize_name(match[1])] = match[2]
    project = pyproject()["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    for extra in ("data", "gguf", "docs"):
        wanted += project["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        if name != "bapo-lightning":
            assert name in pins, f"{name} is not pinned"
            assert requirement.specifier.contains(pins[name]), f"{requirement} against {pins[name]}"


def test_no_path_of_a_developers_machine():
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("needs a git checkout")
    # Written apart, so that this file does not find itself.
    local = "|".join(f"/{first}/" for first in ("work", "opt/wheels", "opt/pypi", "root", "home/[a-z]+"))
    found = run("git", "grep", "--untracked", "-I", "-n", "-E", rf"(^|[^A-Za-z0-9_.}}])({local})")
    assert found.stdout == ""


# --- make and packaging -------------------------------------------------------------------------------------------

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@needs_make
def test_make_lists_every_target():
    listed = set(re.findall(r"^  make (\S+) +\S", run("make").stdout, flags=re.MULTILINE))
    targets = set(re.findall(r"^\.PHONY: ([a-z-]+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"quickstart", "test", "test-slow", "lint", "types", "smoke", "clean", "help"} <= targets
    assert listed == targets


@needs_make
def test_make_installs_again_only_when_it_must(tmp_path):
    """A complete environment is reused; changed pins install; a broken environment is made anew."""

    def planned() -> tuple[bool, bool]:
        done = run("make", "-n", "quickstart", f"PYTHON={sys.executable}", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "bapo fit --config configs/quickstart.yaml" in done.stdout
        return "-m venv" in done.stdout, "-m pip" in done.stdout

    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    assert planned() == (True, True)

    venv = tmp_path / ".venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    assert planned() == (True, True), "an environment without its stamp was not finished"

    (venv / ".made").write_text(f"{venv}\n")
    assert planned() == (False, True)
    (venv / ".installed-run").touch()
    assert planned() == (False, False)

    later = time.time() + 10
    os.utime(tmp_path / "constraints.txt", (later, later))
    assert planned() == (False, True)

    (venv / ".made").write_text("/moved/from/elsewhere\n")
    assert planned() == (True, True)
    (venv / ".made").write_text(f"{venv}\n")
    (venv / "bin" / "python").unlink()
    assert planned() == (True, True)


@pytest.mark.slow
def test_wheel_holds_the_data_of_the_package(tmp_path):
    done = run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT, timeout=280)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = {str(file.relative_to(source)) for file in source.rglob("*") if file.is_file()}
    assert {name for name in files - packed if "__pycache__" not in name and ".egg-info" not in name} == set()
    warm_start = "bapo_lightning/tasks/digits/warm_start"
    assert {f"{warm_start}/config.json", f"{warm_start}/model.safetensors"} <= packed
    assert any(name.endswith("licenses/LICENSE") for name in packed)


@pytest.mark.parametrize("name", ["README.md", "CITATION.cff", "docs/clipping.md"])
def test_which_of_two_methods_of_one_name_this_is(name):
    """B081: another method is also called BAPO (Batch Adaptation, replay-based)."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "2510.18927" in text
    assert "Batch Adaptation" in text
    assert "2602.20722" in text
