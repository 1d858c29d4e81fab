"""``lint-workers``: find faults in the source of workers, without importing it."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from framework.command_line import EXIT_FAILED, EXIT_USAGE, command, with_local_commands
from framework.devtools.lint.application import LintedApplication, read_application, schedule_problems
from framework.devtools.lint.linter import (
    RULES,
    SETS,
    LintConfig,
    expand_sets,
    lint_paths,
    read_config,
    set_of,
    unknown_codes,
)
from framework.devtools.lint.rule import LintFinding, LintRule
from framework.terminal.options import ChoiceOption
from framework.terminal.output import display_path, echo, echo_json, echo_lines, refuse_unknown, reports_errors
from framework.text import format_count

_MAX_WIDTH = 120


class CodesOption(click.ParamType[tuple[str, ...]]):
    """Codes separated by commas, and names of sets where ``sets`` are given."""

    name = "CODE[,CODE]..."

    def __init__(self, sets: Collection[str] = ()) -> None:
        self._sets = sets

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the words. Fails for an unknown one."""
        words = tuple(str(value).split(","))
        for message in unknown_codes(words, self._sets):
            self.fail(message, param, ctx)
        return words


@click.command("lint-workers")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--select",
    type=CodesOption(SETS),
    multiple=True,
    help="Check these codes only. The name of a set selects its codes: default, or gitlab, which has every code. Repeatable.",
)
@click.option("--ignore", type=CodesOption(), multiple=True, help="Leave out these codes. Repeatable.")
@click.option(
    "--format",
    "form",
    type=ChoiceOption(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="The format of findings.",
)
@click.option("--list", "listed", is_flag=True, help="List the codes with the set of each.")
@click.option(
    "--explain",
    "named",
    metavar="CODE",
    multiple=True,
    help="Explain a code: its reason, a bad and a good example, how to suppress it. Repeatable.",
)
@reports_errors
def lint_workers(
    paths: Sequence[Path],
    *,
    select: Sequence[Sequence[str]],
    ignore: Sequence[Sequence[str]],
    form: str,
    listed: bool,
    named: Sequence[str],
) -> None:
    """Check the source of workers below each PATH.

    PATH is a file or a folder. The default is the modules of the setting workers_module. The exit status is 1 when there are
    findings.

    Without PATH, config/schedule.yml is checked too.

    The command imports nothing. For a file in a package it reads the whole package, so that inherited attributes are known,
    and reports only the findings of the file.
    """
    if listed or named:
        if paths or (listed and named):
            raise click.UsageError("--list and --explain go alone.")
        refuse_unknown(named, RULES, lambda name, hint: f"there is no code {name!r}{hint}")
        text = "\n\n".join(map(explanation, (RULES[code] for code in named))) if named else _list()
        echo_lines(text.split("\n"))
        return
    config = _config(select, ignore)
    application = read_application(Path.cwd())
    chosen = list(paths) or _modules(application)
    for path in chosen:
        if not path.exists():
            echo(f"there is no file or folder {path}", err=True)
            sys.exit(EXIT_USAGE)
    found, workers, files, tree = lint_paths(chosen, config, application.facts)
    _FORMATTERS[form](found)
    # Without PATH the modules are those of a process, so that a class that is in none of them is missing.
    problems = [] if paths else list(schedule_problems(tree, application.schedule, application.config_label))
    for one in problems:
        echo(one, err=True)
    if form == "text":
        hint = f" ({command(f'lint-workers --explain {found[0].code}')} gives the reason)" if found else ""
        echo(
            f"{format_count(workers, 'worker')} in {format_count(files, 'file')}: {format_count(len(found), 'finding')}{hint}"
        )
    if found or problems:
        sys.exit(EXIT_FAILED)


def _config(select: Sequence[Sequence[str]], ignore: Sequence[Sequence[str]]) -> LintConfig:
    config = read_config(Path.cwd())
    if select:
        config = replace(config, select=expand_sets(word for words in select for word in words))
    return replace(config, ignore=config.ignore | {code for codes in ignore for code in codes})


def _modules(application: LintedApplication) -> list[Path]:
    """Return the places of the modules that a process loads. A missing module ends the command."""
    here = Path.cwd()
    for name, place in application.modules.items():
        if place is None:
            setting = f"{application.config_label}/application.yml"
            echo(
                f"there is no module {name} in {here}: give a PATH, or name it as workers_module in {setting}", err=True
            )
    if None in application.modules.values():
        sys.exit(EXIT_USAGE)
    return [place for place in application.modules.values() if place is not None]


def _text(found: Sequence[LintFinding]) -> None:
    for one in found:
        echo(f"{display_path(one.path)}:{one.line}:{one.column}: {one.code} {one.message}: {one.fix}")


def _json(found: Sequence[LintFinding]) -> None:
    echo_json([_fields(one) for one in found])


def _fields(one: LintFinding) -> dict[str, object]:
    return {**one._asdict(), "path": display_path(one.path), "name": RULES[one.code].name}


def _github(found: Sequence[LintFinding]) -> None:
    for one in found:
        place = {
            "file": display_path(one.path),
            "line": one.line,
            "col": one.column,
            "endLine": one.end_line,
            "title": one.code,
        }
        words = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in place.items())
        echo(f"::error {words}::{_escaped(f'{one.message}: {one.fix}')}")


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{more}" else letter for letter in text)


_FORMATTERS: Mapping[str, Callable[[Sequence[LintFinding]], None]] = {"text": _text, "json": _json, "github": _github}


def _list() -> str:
    width = max(len(rule.name) for rule in RULES.values())
    return "\n".join(
        f"{rule.code}  {set_of(rule.code):7}  {rule.name:{width}}  {rule.summary}" for rule in RULES.values()
    )


def explanation(rule: LintRule) -> str:
    """Return the whole explanation of a code: summary, reason, fix, a bad and a good example, how to suppress it."""
    comment = (
        f"# {rule.code}: the reason, in two words at least" if rule.code < "SEW100" else "It cannot be suppressed."
    )
    parts = (
        f"{rule.code} {rule.name}: {rule.summary}",
        f"In the set {set_of(rule.code)}.",
        _wrapped(rule.why),
        _wrapped(f"Fix: {with_local_commands(rule.fix)}."),
        f"Bad:\n{_indented(rule.bad)}",
        f"Good:\n{_indented(rule.good)}",
        f"Suppress, on the line of the finding or directly above it:\n    {comment}",
    )
    return "\n\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, min(shutil.get_terminal_size().columns, _MAX_WIDTH), break_long_words=False)


def _indented(code: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in code.strip().splitlines())
