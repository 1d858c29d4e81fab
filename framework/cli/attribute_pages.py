"""The generated parts of the documentation, between markers in Markdown pages: attributes, and the codes of the linter."""

import re
from collections.abc import Mapping
from functools import cache

from framework.declare.attributes import ATTRIBUTES, GROUPS
from framework.declare.cross_rules import CROSS_RULES
from framework.declare.worker import ApplicationWorker
from framework.lint.registry import RULES, set_of
from framework.settings.suggest import did_you_mean

_MARKER = re.compile(
    r"^<!-- ((?P<word>attributes|lint): *(?P<name>[^ >]*)|/(?P<end>attributes|lint)) *-->$", re.MULTILINE
)


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
    """Every generated text by the name in its opening marker: each group's table, ``all`` of them, and the cross ``rules``;
    of the linter its ``codes`` and what they are about, ``explained``.
    """
    tables = {group: _table(group) for group in GROUPS}
    whole = "\n\n".join(f"**{group}**: {GROUPS[group]}\n\n{table}" for group, table in tables.items())
    rules = "\n".join(f"- `{rule}`: {rule.because}. {rule.instead}" for rule in CROSS_RULES)
    return {**tables, "all": whole, "rules": rules, "codes": _codes(), "explained": _explained()}


def filled(page: str) -> str:
    """The text of a page with its generated parts as they should be. Raises PageError for markers that do not hold."""
    done: list[str] = []
    at, opened, end = 0, None, ""
    for marker in _MARKER.finditer(page):
        line = page.count("\n", 0, marker.start()) + 1
        name = marker["name"]
        if (name is None) is (opened is None):
            raise PageError(
                f"{line}: {marker[0]} " + ("closes nothing" if name is None else f"before {end} of {opened}")
            )
        if name is not None and name not in parts():
            raise PageError(
                f"{line}: there is no part {name!r}{did_you_mean(name, parts())}; parts: {', '.join(parts())}"
            )
        if name is None and opened is not None:
            done.append(f"{parts()[opened]}\n{end}")
        else:
            done.append(f"{page[at : marker.start()]}<!-- {marker['word']}: {name} -->\n")
            end = f"<!-- /{marker['word']} -->"
        at, opened = marker.end(), name
    if opened is not None:
        raise PageError(f"{page.count(chr(10)) + 1}: {end} of {opened} is missing")
    return "".join([*done, page[at:]])


def _table(group: str) -> str:
    lines = ["| Attribute | Values | Default | Meaning | Effect today | Trap |", "|---|---|---|---|---|---|"]
    for name, one in ATTRIBUTES.items():
        if one.group == group:
            shown = default(name) if one.required else f"`{default(name)}`"
            cells = (f"`{name}`", one.allowed, shown, one.meaning, one.effect, one.trap)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _codes() -> str:
    lines = ["| Code | Set | Name | What is found | Fix |", "|---|---|---|---|---|"]
    for code, rule in RULES.items():
        lines.append(f"| [{code}](#{code.lower()}) | {set_of(code)} | {rule.name} | {rule.says} | {rule.fix} |")
    return "\n".join(lines)


def _explained() -> str:
    return "\n\n".join(
        f"### {code}\n\n{rule.says} {rule.why}\n\nFound:\n\n{_block(rule.bad, f'{code}/found.py')}\n\n"
        f"Not found:\n\n{_block(rule.good, f'{code}/not_found.py')}"
        for code, rule in RULES.items()
    )


def _block(code: str, file: str) -> str:
    return f"```python file=examples/{file.lower()}\n{code.strip()}\n```"
