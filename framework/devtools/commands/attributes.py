"""``attributes``: show the attributes of worker classes on the terminal and in the pages of the documentation."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from framework import worker_attributes
from framework.application_worker import ATTRIBUTES
from framework.command_line import command, with_local_commands
from framework.declare import registry
from framework.declare.attribute import GROUPS
from framework.devtools.docs_pages import PageError, constraint_texts, default_text, fill_page
from framework.devtools.keyword_types import keyword_types
from framework.errors import FrameworkError
from framework.exit_codes import EXIT_FAILED
from framework.terminal.options import modules_option
from framework.terminal.output import echo, echo_lines, refuse_unknown, write_all
from framework.terminal.project import print_load_error

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
