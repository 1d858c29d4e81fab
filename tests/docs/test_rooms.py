"""Test that each room has a guide page of its name, with its attributes, settings and commands in one place."""

import importlib
from pathlib import Path

import pytest

from framework.declare.attribute import is_group
from framework.feature import Feature, features
from framework.settings.base import SettingsBase
from tests.harness import ROOT

FURTHER = {
    "concurrency": ["limited_capacity"],
    "encryption": ["offload"],
    "fairness": ["priorities"],
    "flags": ["deferral"],
}
"""Pages of what belongs to a room, and has a page of its own."""


def page_of(feature: Feature) -> str:
    names = [feature.name, *FURTHER.get(feature.name, [])]
    return "\n".join((ROOT / "docs" / "guides" / f"{name}.md").read_text() for name in names)


def classes_in(feature: Feature, file: str) -> list[type]:
    module = f"framework.features.{feature.name}.{file}"
    if not (ROOT / Path(*module.split("."))).with_suffix(".py").exists():
        return []
    return [
        one
        for one in vars(importlib.import_module(module)).values()
        if isinstance(one, type) and one.__module__ == module
    ]


@pytest.mark.parametrize("feature", features(), ids=lambda one: one.name)
def test_room_has_a_page_with_all_of_it(feature):
    page = page_of(feature)
    assert "## Traps\n" in page or "**Traps**" in page
    attributes = [
        name for group in classes_in(feature, "attributes") if is_group(group) for name in group.__annotations__
    ]
    commands = [one.name for one in feature.commands] + [f"jobs {one.name}" for one in feature.job_commands]
    settings = [
        f"FRAMEWORK_{name.upper()}"
        for base in classes_in(feature, "settings")
        if issubclass(base, SettingsBase)
        for name in base.__annotations__
    ]
    missing = [name for name in attributes if f"- **`{name}`**" not in page]
    missing += [name for name in commands if f"- **`{name}" not in page]
    missing += [name for name in settings if f"| `{name}" not in page]
    assert not missing
