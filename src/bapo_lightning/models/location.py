"""Where a model lies: a folder, a hub id, or inside an installed Python package."""

import importlib.util
from pathlib import Path

from bapo_lightning.errors import InputError

PACKAGE_PREFIX = "package:"


def locate_model(path: str, key: str = "model.policy.path") -> str:
    """Turn what the user wrote into what ``from_pretrained`` takes.

    Args:
        path: ``package:NAME/SUB/FOLDER`` (a folder inside an installed Python package), a local folder, or a hub id.
        key: The config key, for the message.

    Returns:
        A folder that exists, or the hub id unchanged.

    Raises:
        InputError: The package is not installed, the folder is missing or empty.
    """
    if path.startswith(PACKAGE_PREFIX):
        name, _, inside = path.removeprefix(PACKAGE_PREFIX).partition("/")
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(f"{key}: {path!r} names the Python package {name!r}, which is not installed")
        folder = Path(next(iter(spec.submodule_search_locations))) / inside
    elif _looks_local(path):
        folder = Path(path).expanduser()
    else:
        return path
    if not folder.exists():
        raise InputError(f"{key}: there is no folder {str(folder)!r}")
    if not folder.is_dir():
        raise InputError(f"{key}: {str(folder)!r} is a file; give the folder that holds the model")
    if not any(folder.iterdir()):
        raise InputError(f"{key}: the folder {str(folder)!r} is empty; it should hold config.json and weights")
    return str(folder)


def _looks_local(path: str) -> bool:
    # A hub id is NAME or OWNER/NAME, so anything rooted, relative or deeper is meant as a folder.
    return path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
