"""The generated parts of the documentation: tables and rules of the attributes, between markers in Markdown pages."""

import re
from collections.abc import Mapping
from functools import cache

from framework.declare.attributes import ATTRIBUTES, GROUPS
from framework.declare.cross_rules import CROSS_RULES
from framework.declare.worker import ApplicationWorker
from framework.settings.suggest import did_you_mean

_MARKER = re.compile(r"^<!-- (attributes: *(?P<name>[^ >]*)|/attributes) *-->$", re.MULTILINE)
_END = "<!-- /attributes -->"


class PageError(Exception):
    """The markers of a page do not hold; the text begins with the line."""


def default(name: str) -> str:
    """The default as it would stand in a class body, or the word ``required``."""
    return "required" if ATTRIBUTES[name].required else repr(vars(ApplicationWorker)[name])


def rules_of(name: str) -> list[str]:
    """What the attribute may not say together with others."""
    return [f"{rule}: {rule.because}. {rule.instead}" for rule in CROSS_RULES if name in rule.names()]


@cache
def parts() -> Mapping[str, str]:
    """Every generated text by the word in its opening marker: each group's table, ``all`` of them, and the cross ``rules``."""
    tables = {group: _table(group) for group in GROUPS}
    whole = "\n\n".join(f"**{group}**: {GROUPS[group]}\n\n{table}" for group, table in tables.items())
    rules = "\n".join(f"- `{rule}`: {rule.because}. {rule.instead}" for rule in CROSS_RULES)
    return {**tables, "all": whole, "rules": rules}


def filled(page: str) -> str:
    """The text of a page with its generated parts as they should be. Raises PageError for markers that do not hold."""
    done: list[str] = []
    at, opened = 0, None
    for marker in _MARKER.finditer(page):
        line = page.count("\n", 0, marker.start()) + 1
        name = marker["name"]
        if (name is None) is (opened is None):
            raise PageError(
                f"{line}: {marker[0]} " + ("closes nothing" if name is None else f"before {_END} of {opened}")
            )
        if name is not None and name not in parts():
            raise PageError(
                f"{line}: there is no part {name!r}{did_you_mean(name, parts())}; parts: {', '.join(parts())}"
            )
        if name is None and opened is not None:
            done.append(f"{parts()[opened]}\n{_END}")
        else:
            done.append(f"{page[at : marker.start()]}<!-- attributes: {name} -->\n")
        at, opened = marker.end(), name
    if opened is not None:
        raise PageError(f"{page.count(chr(10)) + 1}: {_END} of {opened} is missing")
    return "".join([*done, page[at:]])


def _table(group: str) -> str:
    lines = ["| Attribute | Values | Default | Meaning | Effect today | Trap |", "|---|---|---|---|---|---|"]
    for name, one in ATTRIBUTES.items():
        if one.group == group:
            shown = default(name) if one.required else f"`{default(name)}`"
            cells = (f"`{name}`", one.allowed, shown, one.meaning, one.effect, one.trap)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
