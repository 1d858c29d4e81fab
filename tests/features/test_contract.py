"""Check the contract between the core and the features."""

from pathlib import Path
from typing import Any

from framework.feature import Feature, Late, features

FOLDER = Path(__file__).resolve().parent.parent.parent / "framework" / "features"


def late_parts(feature: Feature) -> list[Late[Any]]:
    """Return all late parts of a record, also those inside of tuples and mappings."""
    found: list[Late[Any]] = []

    def collect(value: object) -> None:
        if isinstance(value, Late):
            found.append(value)
        elif isinstance(value, tuple):
            for one in value:
                collect(one)
        elif isinstance(value, dict):
            for one in value.values():
                collect(one)

    for value in vars(feature).values():
        collect(value)
    return found


def test_every_feature_has_one_folder_and_one_record() -> None:
    names = [feature.name for feature in features()]
    assert len(set(names)) == len(names)
    assert {one.name for one in FOLDER.iterdir() if (one / "feature.py").exists()} == set(names)


def test_every_late_part_of_a_feature_exists() -> None:
    for feature in features():
        for part in late_parts(feature):
            part.load()
