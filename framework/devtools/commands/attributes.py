"""``attributes``: show the attributes of worker classes on the terminal, and generate parts of the documentation between markers.

A page has what belongs to its subject: `<!-- attributes: cron spread -->` is filled with these two attributes,
`<!-- commands: cron -->` with all commands of that group, others with lint codes and the names of other libraries. ``keyword_types``
writes the keywords of ``background`` for type checkers, which know no dictionary of a class's annotations.
"""

import ast
import inspect
import re
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import click

from framework import worker_attributes
from framework.application_worker import ATTRIBUTES, CONSTRAINTS
from framework.cli.main import main
from framework.command_line import EXIT_FAILED, command, with_local_commands
from framework.declare import registry
from framework.declare.attribute import GROUPS, Attribute
from framework.declare.misuse import SYSTEMS, ForeignName, rows_of
from framework.devtools.lint.linter import DEFAULT, GITLAB, RULES, SETS, set_of
from framework.errors import FrameworkError
from framework.terminal.options import modules_option
from framework.terminal.output import echo, echo_lines, refuse_unknown, write_all
from framework.terminal.project import print_load_error
from framework.text import did_you_mean

DOCS = Path(__file__).resolve().parents[3] / "docs"
"""The documentation of this checkout; an installed package has none."""
KEYWORDS = Path(worker_attributes.__file__)

_LABELS = ("Meaning", "Values", "Default", "Effect", "Trap")
_NAME_WIDTH = max(map(len, ATTRIBUTES))
_MAX_WIDTH = 120


@click.command("attributes")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--write", is_flag=True, help="Fill the generated parts of the documentation.")
@click.option(
    "--check", is_flag=True, help="Write nothing, and name the stale pages. The exit status is 1 when a page is stale."
)
@modules_option
@click.option("--docs", type=Path, default=DOCS, help="The folder of documentation; by default that of the checkout.")
def attributes(*, names: Sequence[str], write: bool, check: bool, modules: Sequence[str], docs: Path) -> None:
    """List the attributes of worker classes, or explain each attribute NAME.

    With -r the options that the loaded modules declare are listed too.
    """
    if bool(names) + write + check > 1:
        raise click.UsageError("NAME, --write and --check do not go together.")
    if modules:
        _load(modules)
    if write or check:
        _update_pages(docs, write=write)
    elif names:
        _print_attributes(names)
    else:
        groups = dict(GROUPS)
        if any(one.group == "application" for one in ATTRIBUTES.values()):
            groups["application"] = "the options that the application declares"
        echo_lines("\n\n".join(_group_text(*one) for one in groups.items()).split("\n"))
        echo()
        echo(f"Attribute, default, allowed values. {command('attributes NAME')} explains one.")


def _load(modules: Sequence[str]) -> None:
    try:
        registry.load(modules)
    except FrameworkError as error:
        print_load_error("", error)
        sys.exit(EXIT_FAILED)


def _group_text(group: str, about: str) -> str:
    lines = [
        _wrap_with_indent(f"  {name:{_NAME_WIDTH}}  {default_text(name):9} ", one.allowed)
        for name, one in ATTRIBUTES.items()
        if one.group == group
    ]
    return "\n".join([f"{group}: {about}", *lines])


def _print_attributes(names: Sequence[str]) -> None:
    refuse_unknown(names, ATTRIBUTES, lambda name, hint: f"there is no attribute {name!r}{hint}")
    echo_lines("\n\n".join(map(_attribute_text, names)).split("\n"))


def _attribute_text(name: str) -> str:
    one = ATTRIBUTES[name]
    cells = map(with_local_commands, (one.meaning, one.allowed, default_text(name), one.effect, one.trap))
    texts = zip(_LABELS, cells, strict=True)
    lines = [
        _wrap_with_indent(f"  {label:8} ", text)
        for label, text in (*texts, *(("Rule", rule) for rule in constraint_texts(name)))
    ]
    return "\n".join([f"{name} ({one.group})", *lines])


def _wrap_with_indent(head: str, text: str) -> str:
    """Return ``text`` after ``head``, wrapped to the width of the terminal, with aligned lines."""
    width = max(len(head) + 30, min(shutil.get_terminal_size().columns, _MAX_WIDTH))
    return textwrap.fill(text, width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False)


def _update_pages(docs: Path, *, write: bool) -> None:
    """Update the generated parts of all pages, or name the stale pages (status 1)."""
    if not docs.is_dir():
        raise click.UsageError(f"{docs} is no folder; name the documentation with --docs.")
    stale = {page: text for page in sorted(docs.rglob("*.md")) if (text := _changed_text(page)) is not None}
    if docs == DOCS and KEYWORDS.read_text(encoding="utf-8") != (keywords := keyword_types(ATTRIBUTES)):
        stale[KEYWORDS] = keywords
    if write:
        write_all(stale)
    for page in stale:
        echo(f"{'wrote' if write else 'stale:'} {page.relative_to(docs.parent)}", err=not write)
    if stale and not write:
        echo(f"Run {command('attributes --write')} and commit the pages.", err=True)
        sys.exit(EXIT_FAILED)
    if not stale:
        echo("The generated parts of the documentation are up to date.")


def _changed_text(page: Path) -> str | None:
    """Return the current text of the page, or None if it is up to date. Mismatched markers end the command."""
    try:
        before = page.read_text(encoding="utf-8")
        after = fill_page(before)
    except (PageError, OSError, UnicodeDecodeError) as error:
        echo(f"{page}:{error}", err=True)
        sys.exit(EXIT_FAILED)
    return after if after != before else None


_MARKER = re.compile(
    r"^<!-- ((?P<word>attributes|commands|lint|names): *(?P<name>[^>]*?)|/(?P<end>attributes|commands|lint|names)) *-->$",
    re.MULTILINE,
)


class PageError(Exception):
    """The markers of a page do not match; the text begins with the line."""


def default_text(name: str) -> str:
    return repr(ATTRIBUTES[name].default)


def constraint_texts(name: str) -> list[str]:
    """Return the constraints between the attribute and others."""
    return [f"{rule}: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS if name in rule.attribute_names()]


@cache
def generated_parts() -> Mapping[str, Mapping[str, str]]:
    """Return every generated text, by the two names in its opening marker.

    ``attributes``: each, and the ``rules`` between them. ``commands``: each, each group, and the options that they ``share``.
    ``lint``: the list of ``codes``, and the codes ``explained``. ``names``: those of each other library.
    """
    rules = "\n".join(f"- `{rule}`: {rule.reason}. {rule.remedy}" for rule in CONSTRAINTS)
    return {
        "attributes": {**{name: _attribute_section(name) for name in ATTRIBUTES}, "rules": rules},
        "commands": _command_texts(),
        "lint": {"codes": _code_lists(), "explained": _code_sections()},
        "names": {system.lower(): _name_list(system) for system in SYSTEMS},
    }


def names_of(word: str, listed: str) -> Sequence[str]:
    """Return the names in an opening marker: those of commands are parted by commas, as some have two words."""
    return [one.strip() for one in listed.split(",")] if word == "commands" else listed.split()


def fill_page(page: str) -> str:
    """Return the text of a page with current generated parts. Raises PageError for markers that do not match."""
    done: list[str] = []
    at, opened, end = 0, "", ""
    for marker in _MARKER.finditer(page):
        line = page.count("\n", 0, marker.start()) + 1
        listed = marker["name"]
        if (listed is None) is (not end):
            raise PageError(
                f"{line}: {marker[0]} " + ("closes nothing" if listed is None else f"before {end} of {opened}")
            )
        if listed is None:
            done.append(end)
            opened = end = ""
        else:
            text = _filled(marker["word"], listed, line)
            done.append(f"{page[at : marker.start()]}<!-- {marker['word']}: {listed} -->\n{text}\n")
            opened, end = listed, f"<!-- /{marker['word']} -->"
        at = marker.end()
    if end:
        raise PageError(f"{page.count(chr(10)) + 1}: {end} of {opened} is missing")
    return "".join([*done, page[at:]])


def _filled(word: str, listed: str, line: int) -> str:
    parts = generated_parts()[word]
    for name in names_of(word, listed):
        if name not in parts:
            raise PageError(f"{line}: there is no part {name!r}{did_you_mean(name, parts)}")
    return "\n".join(parts[name] for name in names_of(word, listed))


def _attribute_section(name: str) -> str:
    """Return what a reader of its page needs beside the text of the page, which tells the effect."""
    one = ATTRIBUTES[name]
    return f"- **`{name}`**: {one.allowed}; default `{default_text(name)}`. {one.meaning} *Trap:* {one.trap}"


def all_commands(command: click.Command = main, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Return every command that is no group, by its name behind ``application-worker``."""
    if isinstance(command, click.Group):
        for name, child in sorted(command.commands.items()):
            yield from all_commands(child, (*path, name))
    else:
        yield " ".join(path), command


def _command_texts() -> Mapping[str, str]:
    """Return the text of each command, and of each group all texts of its commands."""
    texts = {name: _command_text(name, one) for name, one in all_commands()}
    groups = {" ".join(words[:end]) for words in map(str.split, texts) for end in range(1, len(words))}
    return {
        **texts,
        **{group: "\n".join(text for name, text in texts.items() if name.startswith(f"{group} ")) for group in groups},
    }


def _options(command: click.Command) -> list[click.Option]:
    return [one for one in command.params if isinstance(one, click.Option) and one.opts[-1] != "--help"]


def _command_text(name: str, command: click.Command) -> str:
    """Return the purpose of a command and its required options; ``--help`` explains all of them."""
    pieces = [one for one in command.collect_usage_pieces(click.Context(command)) if one != command.options_metavar]
    words = [f"`{one.opts[0]}`" for one in _options(command) if one.required]
    line = f"- **`{' '.join([name, *pieces])}`**: {command.get_short_help_str(10_000)}"
    return f"{line} It needs {', '.join(words)}." if words else line


def _name_list(system: str) -> str:
    """Return the names of a library. Names with the same answer share a line, which is linked to the guide."""
    answers: dict[tuple[str, str], list[str]] = {}
    for one in rows_of(system):
        answers.setdefault((one.text(), one.page), []).extend(shown_name(one))
    return "\n".join(f"- [{', '.join(names)}](../{page}): {text}" for (text, page), names in answers.items())


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
    return "\n\n".join(f"### {code}\n\n{rule.summary} Fix: {rule.fix}." for code, rule in RULES.items())


_HEAD = '''"""The attributes of a worker class as keywords of ``background``. Written by ``application-worker attributes --write``."""

{imports}


class WorkerAttributes(TypedDict, total=False):
    """The attributes that a function may have: those that belong to no base class."""

{fields}
'''

_LINE_LENGTH = 120
"""The longest line that the formatter leaves as it is."""


def keyword_types(attributes: Mapping[str, Attribute]) -> str:
    """Return the source of the module with the keywords and their types, as the attribute groups annotate them."""
    fields: list[str] = []
    imported: defaultdict[str, set[str]] = defaultdict(set, {"typing": {"TypedDict"}})
    for one in attributes.values():
        if one.kind is None and one.owner is not None:
            tree = ast.parse(inspect.getsource(sys.modules[one.owner.__module__]))
            annotation = _annotation(tree, one)
            fields.append(f"    {one.name}: {ast.unparse(annotation)}")
            names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
            for module, name in _sources(tree, one.owner.__module__):
                if name in names:
                    imported[module].add(name)
    return _HEAD.format(imports=_import_lines(imported), fields="\n".join(fields))


def _annotation(tree: ast.Module, attribute: Attribute) -> ast.expr:
    """Return what stands within the ClassVar of a declaration."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Subscript(slice=inner)) if (
                name == attribute.name
            ):
                return inner
            case _:
                pass
    raise ValueError(f"{attribute.name} has no annotation ClassVar[...]")


def _sources(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Return the names that a module imports or defines as a class, each behind the module that has it."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield module, node.name
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.module, alias.name) for alias in node.names)


def _import_lines(imported: Mapping[str, set[str]]) -> str:
    """Return the imports as the formatter sorts them: the standard library first."""
    lines = {module: _import_line(module, sorted(names)) for module, names in sorted(imported.items())}
    ours = [line for module, line in lines.items() if module.startswith("framework.")]
    return "\n".join([line for line in lines.values() if line not in ours] + ["", *ours])


def _import_line(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _LINE_LENGTH:
        return line
    return "\n".join([f"from {module} import (", *(f"    {name}," for name in names), ")"])
