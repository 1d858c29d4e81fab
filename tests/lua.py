"""List the Lua scripts of the framework, for tests that look at all of them."""

from pathlib import Path

from framework.store import rights
from framework.store.script import Script

_FRAMEWORK = Path(__file__).resolve().parent.parent / "framework"

SCRIPTS: dict[str, Script] = {one.name: one for role in rights.ROLES.values() for one in role.scripts}
"""All scripts by name: each belongs to a role (``tests/store/test_scripts.py``)."""


def script_files() -> dict[str, Path]:
    """Return the file of each script by the name of the script, without the parts that scripts share."""
    return _by_name("*.lua")


def part_files() -> dict[str, Path]:
    """Return the file of each part by its name."""
    return _by_name("parts/*.lua")


def _by_name(pattern: str) -> dict[str, Path]:
    found = {path.stem: path for path in (_FRAMEWORK / "store" / "scripts").glob(pattern)}
    rooms = (_FRAMEWORK / "features").glob(f"*/scripts/{pattern}")
    return found | {f"{path.relative_to(_FRAMEWORK).parts[1]}/{path.stem}": path for path in rooms}
