"""The generated parts of the documentation, between markers in Markdown pages: attributes, and the codes of the linter."""

import re
from collections.abc import Mapping
from functools import cache

from framework.declare.attributes import ATTRIBUTES, GROUPS
from framework.declare.constraints import CONSTRAINTS
from framework.declare.worker import ApplicationWorker
from framework.devtools.lint.registry import RULES, set_of
from framework.messages import did_you_mean

_MARKER = re.compile(
    r"^<!-- ((?P<word>attributes|lint): *(?P<name>[^ >]*)|/(?P<end>attributes|lint)) *-->$", re.MULTILINE
)


class PageError(Exception):
    """The markers of a page do not hold; the text begins with the line."""


def default_text(name: str) -> str:
    """The default as it would stand in a class body, or the word ``required``."""
    return "required" if ATTRIBUTES[name].required else repr(vars(ApplicationWorker)[name])


def constraint_texts(name: str) -> list[str]:
    """What the attribute may not say together with others."""
    return [f"{rule}: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS if name in rule.attribute_names()]


@cache
def generated_parts() -> Mapping[str, str]:
    """Every generated text by the name in its opening marker: each group's table, ``all`` of them, and the cross ``rules``;
    of the linter its ``codes`` and what they are about, ``reports_errors``.
    """
    tables = {group: _attribute_table(group) for group in GROUPS}
    whole = "\n\n".join(f"**{group}**: {GROUPS[group]}\n\n{table}" for group, table in tables.items())
    rules = "\n".join(f"- `{rule}`: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS)
    return {**tables, "all": whole, "rules": rules, "codes": _code_table(), "explained": _code_sections()}


def fill_page(page: str) -> str:
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
        if name is not None and name not in generated_parts():
            raise PageError(
                f"{line}: there is no part {name!r}{did_you_mean(name, generated_parts())}; parts: {', '.join(generated_parts())}"
            )
        if name is None and opened is not None:
            done.append(f"{generated_parts()[opened]}\n{end}")
        else:
            done.append(f"{page[at : marker.start()]}<!-- {marker['word']}: {name} -->\n")
            end = f"<!-- /{marker['word']} -->"
        at, opened = marker.end(), name
    if opened is not None:
        raise PageError(f"{page.count(chr(10)) + 1}: {end} of {opened} is missing")
    return "".join([*done, page[at:]])


def _attribute_table(group: str) -> str:
    lines = ["| Attribute | Values | Default | Meaning | Effect today | Trap |", "|---|---|---|---|---|---|"]
    for name, one in ATTRIBUTES.items():
        if one.group == group:
            shown = default_text(name) if one.required else f"`{default_text(name)}`"
            cells = (f"`{name}`", one.allowed, shown, one.meaning, one.effect, one.trap)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _code_table() -> str:
    lines = ["| Code | Set | Name | What is found | Fix |", "|---|---|---|---|---|"]
    for code, rule in RULES.items():
        lines.append(f"| [{code}](#{code.lower()}) | {set_of(code)} | {rule.name} | {rule.summary} | {rule.fix} |")
    return "\n".join(lines)


def _code_sections() -> str:
    return "\n\n".join(
        f"### {code}\n\n{rule.summary} {rule.why}\n\nFound:\n\n{_code_block(rule.bad, f'{code}/found.py')}\n\n"
        f"Not found:\n\n{_code_block(rule.good, f'{code}/not_found.py')}"
        for code, rule in RULES.items()
    )


def _code_block(code: str, file: str) -> str:
    return f"```python file=examples/{file.lower()}\n{code.strip()}\n```"
