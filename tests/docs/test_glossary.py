"""Test that the glossary has exactly one row for every name of the reference pages."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"Log fields": "log_fields", "Log events": "log_events", "Keys": "keys", "Commands": "commands"}


def rows(text: str) -> list[str]:
    cells = re.findall(r"^\| ((?:\\\||[^|])+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def section(name: str) -> str:
    text = (DOCS / "glossary.md").read_text().partition(f"\n## {name}\n")[2]
    return re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("name", PAGES)
def test_glossary_has_every_name_of_the_reference(name: str) -> None:
    text = (DOCS / "reference" / f"{PAGES[name]}.md").read_text()
    if name == "Log fields":
        before, _, after = text.partition("\n## Job status\n")
        text = before + after.partition("\n## ")[2]
    known = rows(section(name))
    wanted = {one for one in rows(text) if not one.startswith("-")}
    assert wanted - set(known) == set()
    assert sorted(known) == sorted(set(known))


def test_glossary_has_every_status() -> None:
    text = (DOCS / "reference" / "log_fields.md").read_text().partition("\n## Job status\n")[2].partition("\n## ")[0]
    assert set(rows(text)) == set(rows(section("Job status")))
