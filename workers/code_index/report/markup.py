"""HTML and SVG by construction: text is escaped unless it was built here."""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

T = TypeVar("T")
_VOID: Final = frozenset({"meta", "rect", "line"})


class Html(str):
    """Markup made by ``tag``; every other string is text and gets escaped."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. ``class_`` is written ``class``, underscores become hyphens, ``None`` leaves an attribute out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>" if name == "meta" else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{joined(children)}</{name}>")


def joined(children: Sequence[object]) -> Html:
    """The children one after the other, text escaped."""
    return Html("".join(child if isinstance(child, Html) else html.escape(str(child)) for child in children))


def breakable(text: str) -> Html:
    """The text, escaped, with places where a narrow column may break a path or a name."""
    parts = re.split(r"(?<=[/._-])", text)
    return Html("<wbr>".join(html.escape(part) for part in parts))


@dataclass(frozen=True)
class Column(Generic[T]):
    """A table column: its heading, how to get the cell from a row, whether it is a number."""

    heading: str
    cell: Callable[[T], object]
    numeric: bool = False


def table(caption: str, columns: Sequence[Column[T]], rows: Sequence[T]) -> Html:
    """A table whose first column names its row; wide ones scroll inside their own box, reachable by keyboard."""
    head = [tag("th", c.heading, scope="col", class_="number" if c.numeric else None) for c in columns]
    body = [tag("tr", *(_cell(column, row, position) for position, column in enumerate(columns))) for row in rows]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", *head)), tag("tbody", *body))
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=caption)


def _cell(column: Column[T], row: T, position: int) -> Html:
    kind = "number" if column.numeric else None
    if position == 0:
        return tag("th", column.cell(row), scope="row", class_=kind)
    return tag("td", column.cell(row), class_=kind)
