"""Check the contract between the core and the features."""

import importlib
import inspect
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from framework.feature import Feature, Hold, Late, features
from framework.store import script
from framework.wire.waiters import Waiter
from tests.lua import part_files

FOLDER = Path(__file__).resolve().parent.parent.parent / "framework" / "features"


def late_parts(feature: Feature) -> list[Late[Any]]:
    """Return all late parts of a record, also those inside of tuples, mappings and its own records."""
    found: list[Late[Any]] = []

    def collect(value: object) -> None:
        if isinstance(value, Late):
            found.append(value)
        elif is_dataclass(value):
            collect(vars(value))
        elif isinstance(value, tuple):
            for one in value:
                collect(one)
        elif isinstance(value, dict):
            for one in value.values():
                collect(one)

    collect(feature)
    return found


def test_every_feature_has_one_folder_and_one_record() -> None:
    names = [feature.name for feature in features()]
    assert len(set(names)) == len(names)
    assert {one.name for one in FOLDER.iterdir() if (one / "__init__.py").exists()} == set(names)


def test_every_late_part_of_a_feature_exists() -> None:
    for feature in features():
        for part in late_parts(feature):
            part.load()


def test_records_load_no_library() -> None:
    """The help of the commands reads all records."""
    code = (
        "import sys, framework.features.order; print(*{'click', 'pydantic', 'redis', 'yaml'}.intersection(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


HOLDS = [hold for feature in features() for hold in feature.holds]


def test_every_hold_has_its_lua_function() -> None:
    """The rights of Redis users are read from the calls ``release_NAME(``; a name in JSON must be one in Lua too."""
    for hold in HOLDS:
        assert re.fullmatch("[a-z_]+", hold.name)
        if not hold.part:
            # A waiter that is told nothing.
            assert f"release_{hold.name}".encode() not in script.FINISH.source
            continue
        assert re.search(rf"^local function release_{hold.name}\(", part_files()[hold.part].read_text(), re.MULTILINE)
        assert script.FINISH.source.count(f"release_{hold.name}(unpack(held.{hold.name}))".encode()) == 1


def test_every_waiter_has_the_methods_of_its_protocol() -> None:
    names = [name for name, _ in inspect.getmembers(Waiter, inspect.isfunction) if not name.startswith("_")]
    for hold in HOLDS:
        waiter = hold.waiter.load()
        assert isinstance(waiter, Waiter)
        assert all(name in vars(type(waiter)) for name in names)


def test_holds_have_different_names_and_fields() -> None:
    assert len({hold.name for hold in HOLDS}) == len({hold.field for hold in HOLDS}) == len(HOLDS)


def test_assembled_part_tells_waiters_in_the_order_of_records(monkeypatch) -> None:
    """A waiter that fails does not keep the next one from being told."""
    none: Late[Any] = Late("nowhere:NOTHING")
    records = [
        Feature(name=name, holds=(Hold(name=name, field=name, part="time", waiter=none),)) for name in ("first", "next")
    ]
    monkeypatch.setattr(script, "features", lambda: records)
    script.part_text.cache_clear()
    try:
        text = script.part_text("waiters").decode()
    finally:
        script.part_text.cache_clear()
    assert text.count("local function redis_now()") == 1
    assert text.index("if held.first then") < text.index("release_first(unpack(held.first))")
    assert text.index("release_first(") < text.index("if held.next then") < text.index("release_next(")
    assert "return" not in text[text.index("if held.first") : text.index("if held.next")]


def test_at_most_one_feature_decides_about_locks() -> None:
    assert [feature.name for feature in features() if feature.locks is not None] == ["deduplication"]


def test_parts_of_pushes_and_processes_are_functions() -> None:
    """Each is called with the plan and the client, with the client, or with the context of a process."""
    for feature in features():
        for part, parameters in ((feature.push, 2), (feature.locks, 1), (feature.worker, 1), (feature.stored_jobs, 2)):
            assert part is None or len(inspect.signature(part.load()).parameters) == parameters


@pytest.mark.parametrize("part", ["locks", "protection", "fallback", "recorder"])
def test_one_feature_has_each_single_part_of_a_process(part: str) -> None:
    """A client takes the first: a second feature with the part would be ignored."""
    assert len([one.name for one in features() if getattr(one, part) is not None]) == 1


STANDARD = {
    "push": {"push"},
    "locks": {"push"},
    "fallback": {"push"},
    "payload": {"payload", "push"},
    "holds": {"payload"},
    "worker": {"worker", "admission", "process_flags"},  # flags: producers ask the same object
    "explain": {"explain"},
    "protection": {"protection"},
}
"""The files of a room in which the parts of its record stand."""


@pytest.mark.parametrize("feature", features(), ids=lambda one: one.name)
def test_parts_of_a_room_stand_in_files_of_the_same_names(feature: Feature) -> None:
    """A reader of one room knows where to look in any other (docs/internals/rooms.md)."""
    room = f"framework.features.{feature.name}"
    assert getattr(importlib.import_module(room), feature.name.upper()) is feature
    for part in late_parts(feature):
        assert part.path.startswith(f"{room}."), part
    for name, files_ in STANDARD.items():
        value = getattr(feature, name)
        parts = [value] if isinstance(value, Late) else [one.waiter for one in value or ()]
        assert {part.path.partition(":")[0].removeprefix(f"{room}.") for part in parts} <= files_, name
    for one in (*feature.commands, *feature.job_commands):
        assert one.command.path.partition(":")[0].endswith("commands"), one


def test_attributes_settings_scripts_stand_in_uniform_files() -> None:
    for path in FOLDER.glob("*/*.py"):
        text = path.read_text()
        assert path.name == "attributes.py" or "@attribute_group" not in text, path
        assert path.name == "settings.py" or not re.search(r"^class \w+\(SettingsBase\)", text, re.MULTILINE), path
        # Classes that a type checker reads apart are in calls.py: the pure files that the composed classes import.
        assert path.name == "attributes.py" or "(TypedDict, total=False)" not in text, path
    for path in FOLDER.rglob("*.lua"):
        assert path.relative_to(FOLDER).parts[1] == "scripts", path


def test_page_of_rooms_names_every_field_of_a_record() -> None:
    page = (FOLDER.parent.parent / "docs" / "internals" / "rooms.md").read_text()
    assert [one.name for one in fields(Feature) if f"`{one.name}`" not in page.partition("The files of a room")[0]] == [
        "name"
    ]
