"""Check which files a scan finds."""

import os
from pathlib import Path

import pytest

from workers.code_index.source_files import SINGLE_MODULES, find_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in (
        "single.py",
        "package/__init__.py",
        "package/sub/module.py",
        "package/data.txt",
        "__pycache__/single.py",
        ".hidden/secret.py",
        "lib/site-packages/installed.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


def test_find_files_has_a_stable_order(tree: Path) -> None:
    found = find_files([str(tree)])
    assert [(file.shown, file.package) for file in found] == [
        ("tree/single.py", SINGLE_MODULES),
        ("tree/package/__init__.py", "package"),
        ("tree/package/sub/module.py", "package"),
    ]
    assert [file.path for file in found] == [bytes(tree / Path(file.shown).relative_to("tree")) for file in found]


def test_find_files_skips_installed_packages_below_a_root(tree: Path) -> None:
    found = find_files([str(tree / "lib" / "site-packages")])
    assert [file.shown for file in found] == ["site-packages/installed.py"]


def test_find_files_of_overlapping_roots_has_each_once(tree: Path) -> None:
    found = find_files([str(tree), str(tree / "package"), str(tree)])
    assert len(found) == 3


def test_find_files_takes_a_file_as_root(tree: Path) -> None:
    found = find_files([str(tree / "package" / "data.txt")])
    assert [(file.shown, file.package) for file in found] == [("data.txt", SINGLE_MODULES)]


def test_find_files_of_a_missing_root_is_empty(tmp_path: Path) -> None:
    assert find_files([str(tmp_path / "none")]) == []


def test_hostile_names_are_kept_and_shown_safely(tmp_path: Path) -> None:
    names = [b"caf\xe9.py", b"new\nline.py", b"\x1b[31mred.py", "right\u202eleft.py".encode()]
    for name in names:
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_bytes(b"")
    found = find_files([str(tmp_path)])
    assert sorted(file.path.rpartition(b"/")[2] for file in found) == sorted(names)
    assert all(file.shown.isprintable() for file in found)


def test_find_files_follows_no_link_to_a_folder(tree: Path) -> None:
    (tree / "again").symlink_to(tree)
    assert len(find_files([str(tree)])) == 3
