"""Generate parts of the documentation between markers in Markdown pages: attributes, lint codes, names of other libraries."""

import re
from collections.abc import Mapping
from functools import cache

from framework.declare.attribute import GROUPS
from framework.declare.attributes import ATTRIBUTES
from framework.declare.constraints import CONSTRAINTS
from framework.declare.foreign_names import SYSTEMS, ForeignName, rows_of
from framework.declare.misuse import declared_value
from framework.declare.worker import ApplicationWorker
from framework.devtools.lint.registry import DEFAULT, GITLAB, RULES, SETS, set_of
from framework.messages import did_you_mean

_MARKER = re.compile(
    r"^<!-- ((?P<word>attributes|lint|names): *(?P<name>[^ >]*)|/(?P<end>attributes|lint|names)) *-->$", re.MULTILINE
)
_BASE_IMPORT = re.compile(r"((?<=\n)\n(?=.*\n\n))?^from workers\.base import TeamWorker\n", re.MULTILINE)
"""The import that examples share, with the blank line before it if no other import follows."""


class PageError(Exception):
    """The markers of a page do not match; the text begins with the line."""


def default_text(name: str) -> str:
    """Return the default as source text."""
    return repr(declared_value(ApplicationWorker, name))


def constraint_texts(name: str) -> list[str]:
    """Return the constraints between the attribute and others."""
    return [f"{rule}: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS if name in rule.attribute_names()]


@cache
def generated_parts() -> Mapping[str, str]:
    """Return every generated text by the name in its opening marker.

    Attributes: each group's table, ``all`` tables, and the ``rules`` between attributes. Linter: the list of ``codes``, and
    the codes ``explained``. Names: a table for each other library.
    """
    tables = {group: _attribute_table(group) for group in GROUPS}
    whole = "\n\n".join(f"**{group}**: {GROUPS[group]}\n\n{table}" for group, table in tables.items())
    rules = "\n".join(f"- `{rule}`: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS)
    names = {system.lower(): _name_table(system) for system in SYSTEMS}
    return {**tables, **names, "all": whole, "rules": rules, "codes": _code_lists(), "explained": _code_sections()}


def fill_page(page: str) -> str:
    """Return the text of a page with current generated parts. Raises PageError for markers that do not match."""
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
            shown = f"`{default_text(name)}`"
            cells = (f"`{name}`", one.allowed, shown, one.meaning, one.effect, one.trap)
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _name_table(system: str) -> str:
    """Return the names of a library. Names with the same answer share a row."""
    answers: dict[tuple[str, str], list[str]] = {}
    for one in rows_of(system):
        answers.setdefault((one.text(), one.page), []).extend(shown_name(one))
    lines = [f"| {system} | Here | Guide |", "|---|---|---|"]
    for (text, page), names in answers.items():
        guide = page.removeprefix("guides/").removesuffix(".md").replace("_", " ")
        lines.append(f"| {', '.join(names)} | {text} | [{guide}](../{page}) |")
    return "\n".join(lines)


def shown_name(one: ForeignName) -> list[str]:
    """Return the name as a program of the library has it, in each of its forms."""
    forms = {"attribute": "{0}", "option": "{0}=", "method": ".{0}(...)", "self": "self.{0}", "hook": "def {0}"}
    # An attribute that is also an option has its plain name.
    places = [place for place in one.places if not (place == "option" and "attribute" in one.places)]
    return [f"`{forms[place].format(one.name)}`" for place in places]


def _code_lists() -> str:
    codes: dict[str, list[str]] = {name: [] for name in SETS}
    for code, rule in RULES.items():
        codes[set_of(code)].append(f"[{code}](#{code.lower()}) {rule.name}")
    return f"- `{DEFAULT}`: {', '.join(codes[DEFAULT])}\n- `{GITLAB}` adds: {', '.join(codes[GITLAB])}"


def _code_sections() -> str:
    return "\n\n".join(
        f"### {code}\n\n{rule.summary} {rule.why}\n\nFix: {rule.fix}.\n\n"
        f"Bad:\n\n{_code_block(rule.bad, f'{code}/bad.py')}\n\nGood:\n\n{_code_block(rule.good, f'{code}/good.py')}"
        for code, rule in RULES.items()
    )


def _code_block(code: str, file: str) -> str:
    # The page names this import once, above the examples.
    shown = _BASE_IMPORT.sub("", code).strip()
    return f"```python file=examples/{file.lower()}\n{shown}\n```"
