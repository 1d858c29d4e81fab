"""Commands have one name for an installed user: messages and pages say ``application-worker NAME``, never ``scripts/NAME``."""

import re
from pathlib import Path

from framework.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent
INSTALLED = frozenset(main.entries)
LAUNCHERS = {name.replace("-", "_") for name in INSTALLED}
OF_CHECKOUT = frozenset(
    {"architecture", "bench", "browser_files", "dashboard_pictures", "chaos", "demo", "docs", "prove", "setup", "test"}
)
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
SOURCES = [
    path
    for folder, pattern in (("framework", "*.py"), ("config", "*.yml"), ("workers", "*.yml"))
    for path in (ROOT / folder).rglob(pattern)
]
EXCEPTIONS = {
    "framework/command_line.py": {"scripts/generate_queues"},
    "docs/learn/getting_started.md": {"scripts/generate_queues"},
}
"""The module that translates, and the page that describes both forms."""

_IN_CHECKOUT = re.compile(rf"scripts/(?:{'|'.join(sorted(LAUNCHERS | INSTALLED))})\b(?![/.\w])")
_NAMED = re.compile(r"(?:[`{(\"']|^|&& |\| |: )application-worker (?P<name>[a-z][\w-]*)", re.MULTILINE)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_no_text_names_a_launcher_of_the_checkout() -> None:
    found = {relative(path): set(_IN_CHECKOUT.findall(path.read_text())) for path in (*PAGES, *SOURCES)}
    assert {path: names for path, names in found.items() if names} == EXCEPTIONS


def test_each_named_command_is_installed() -> None:
    found = {relative(path): {one["name"] for one in _NAMED.finditer(path.read_text())} for path in (*PAGES, *SOURCES)}
    assert len([path for path, names in found.items() if names]) > 50
    assert {path: names - INSTALLED for path, names in found.items() if names - INSTALLED} == {}


def test_each_command_has_one_launcher_in_the_checkout() -> None:
    files = {path.name for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix}
    assert files == LAUNCHERS | OF_CHECKOUT
