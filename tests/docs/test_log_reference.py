"""Test the reference of log lines: exactly the events, fields and statuses of the code have a row."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.reference_pages import names, text_of
from tests.syntax import N, nodes_of

ROOT = Path(__file__).resolve().parents[2]
NO_LOG_LINES = {"cli", "terminal", "lint", "compat"}
"""Folders whose calls of `warning` and the like are no log lines."""
LEVELS = {"debug", "info", "warning", "error", "exception"}
NO_FIELDS = {"exc_info", "stacklevel"}
EVENT = re.compile(r"[a-z_]+\.[a-z_]+")
NO_EVENTS = re.compile(r"framework\.|openfeature\.|sqlalchemy\.|socket\.|.*\.(yml|yaml|json)$")
BY_KIND = {"trimmed": ("dead", "interrupted")}
"""Events with a composed name: the end of the name, and its possible beginnings."""


def nodes(*kinds: type[N]) -> Iterator[N]:
    """Return the nodes of these types in all files that may write log lines."""
    folder = ROOT / "framework"
    paths = [path for path in folder.rglob("*.py") if path.relative_to(folder).parts[0] not in NO_LOG_LINES]
    return chain.from_iterable(nodes_of(path, *kinds) for path in paths)


def written_events() -> set[str]:
    events = {f"{start}.{end}" for end, starts in BY_KIND.items() for start in starts}
    for node in nodes(ast.keyword, ast.Call):
        match node:
            case ast.keyword(arg="event_name", value=value):
                constants = {one.value for one in ast.walk(value) if isinstance(one, ast.Constant)}
                events |= {one for one in constants if isinstance(one, str) and EVENT.fullmatch(one)}
            case ast.Call(func=ast.Name(id="ChildEvent"), args=[ast.Constant(value=str() as kind), *_]):
                events.add(f"child.{kind}")
            case ast.Call(func=ast.Attribute(attr="_ended"), args=[_, kinds]):
                events |= {f"child.{one.value}" for one in ast.walk(kinds) if type(getattr(one, "value", 0)) is str}
            case _:
                pass
    return events


def written_fields() -> set[str]:
    fields: set[str] = set()
    for node in nodes(ast.Call):
        if getattr(node.func, "attr", "") in {*LEVELS, "logger"}:
            fields |= {one.arg for one in node.keywords if one.arg}
            dicts = [one.value for one in node.keywords if isinstance(one.value, ast.Dict)]
            fields |= {key.value for one in dicts for key in one.keys if isinstance(key, ast.Constant)}
    lines = "".join((ROOT / "framework" / "execute" / name).read_text() for name in ("job_log.py", "end_report.py"))
    fields |= set(re.findall(r'[{,]"([a-z_]+)":(?=\S)', lines))
    return fields - NO_FIELDS


def test_log_events_page_has_a_row_for_every_event() -> None:
    rows, written = set(names("Log events")), written_events()
    assert written - rows == set()
    literals = {
        node.value for node in nodes(ast.Constant) if isinstance(node.value, str) and EVENT.fullmatch(node.value)
    }
    assert rows - written - {name for name in literals if not NO_EVENTS.match(name)} == set()


def test_log_fields_page_has_a_row_for_every_field() -> None:
    rows = set(names("Log fields"))
    assert {name for name in written_fields() - rows if not name.startswith("_")} == set()


def test_log_fields_page_has_a_row_for_every_status() -> None:
    from framework.finish.endings import ENDINGS

    page = text_of("Log fields").partition("## Job status\n")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    written = {"start", *(ending.log_status for ending in ENDINGS if ending.log_status)}
    for node in nodes(ast.keyword):
        if node.arg == "job_status":
            written |= {one.value for one in ast.walk(node.value) if type(getattr(one, "value", 0)) is str}
    assert written - rows == set()
