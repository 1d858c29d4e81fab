"""Read the reference: the page of a kind, and the section of that kind on the pages of the features."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
KINDS = {"Log fields": "log_fields.md", "Log events": "log_events.md", "Keys": "keys.md", "Settings": "settings.md"}


def text_of(kind: str) -> str:
    """Return all of the reference of one kind."""
    section = re.compile(rf"^### {kind}\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
    found = [section.findall(page.read_text()) for page in sorted((DOCS / "guides").glob("*.md"))]
    return "\n".join([(DOCS / "reference" / KINDS[kind]).read_text(), *(one for many in found for one in many)])


def names(kind: str) -> list[str]:
    """Return the names in the first column of the tables."""
    cells = re.findall(r"^\| (`(?:\\\||[^|])*`) \|", text_of(kind), re.MULTILINE)
    return [name.replace("\\|", "|") for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
