"""``lint-workers``: what is wrong, or not said, in the source of workers; read without importing any of it."""

import gc
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from framework.cli.failure import EXIT_FAILED, EXIT_USAGE, explained, refuse_unknown
from framework.cli.options import WordOption
from framework.cli.written import shown
from framework.lint.config import Config, read_config, unknown_codes
from framework.lint.linter import lint
from framework.lint.registry import RULES
from framework.lint.rule import Finding, Rule
from framework.lint.tree import read_tree
from framework.settings.files import find_folder
from framework.settings.shapes import is_mapping
from framework.settings.yaml_file import YamlError, read_yaml

COMMAND = "scripts/lint_workers"
DEFAULT = "workers"
_WIDEST = 120


class CodesOption(click.ParamType[tuple[str, ...]]):
    """CODE or CODE,CODE,..."""

    name = "CODE[,CODE]..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the codes, each of which there is."""
        codes = tuple(str(value).split(","))
        for message in unknown_codes(codes):
            self.fail(message, param, ctx)
        return codes


@click.command("lint-workers")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option("--select", type=CodesOption(), multiple=True, help="Only these codes.")
@click.option("--ignore", type=CodesOption(), multiple=True, help="All but these codes.")
@click.option(
    "--format", "form", type=WordOption(["text", "json", "github"]), default="text", help="How findings are written."
)
@click.option("--list", "listed", is_flag=True, help="List the codes.")
@click.option(
    "--explain", "named", metavar="CODE", multiple=True, help="Explain a code: why, bad, good, how to waive it."
)
@explained
def lint_workers(
    paths: Sequence[Path],
    *,
    select: Sequence[Sequence[str]],
    ignore: Sequence[Sequence[str]],
    form: str,
    listed: bool,
    named: Sequence[str],
) -> None:
    """Look for faults in the workers below PATH (files or folders; default: workers). Exit 1 when there are findings.

    Nothing is imported. Of a file in a package the whole package is read, so that inherited attributes are known, and
    only what stands in the file is reported.
    """
    if listed or named:
        if paths or (listed and named):
            raise click.UsageError("--list and --explain go alone.")
        refuse_unknown(named, RULES, lambda name, hint: f"there is no code {name!r}{hint}")
        click.echo("\n\n".join(map(explanation, (RULES[code] for code in named))) if named else _list())
        return
    config = _config(select, ignore)
    chosen = list(paths) or [Path(DEFAULT)]
    for path in chosen:
        if not path.exists():
            click.echo(f"there is no file or folder {path}", err=True)
            sys.exit(EXIT_USAGE)
    found, workers, files = _look(chosen, config)
    _FORMS[form](found)
    if form == "text":
        hint = f" ({COMMAND} --explain {found[0].code} tells why)" if found else ""
        click.echo(f"{_count(workers, 'worker')} in {_count(files, 'file')}: {_count(len(found), 'finding')}{hint}")
    if found:
        sys.exit(EXIT_FAILED)


def _config(select: Sequence[Sequence[str]], ignore: Sequence[Sequence[str]]) -> Config:
    config = read_config(Path.cwd())
    if select:
        config = replace(config, select=frozenset(code for codes in select for code in codes))
    return replace(config, ignore=config.ignore | {code for codes in ignore for code in codes})


def _look(paths: Sequence[Path], config: Config) -> tuple[list[Finding], int, int]:
    """The findings, and how many workers and files were asked for."""
    gc.disable()  # a syntax tree has no garbage, and millions of nodes to look through for it
    try:
        tree, wanted = read_tree(paths, Path.cwd(), config.excludes, _categories())
        found, workers = lint(tree, wanted, config.applies)
    finally:
        gc.enable()
    return found, workers, len(wanted)


def _categories() -> Sequence[str] | None:
    """The known feature categories; None where no file tells them, or none that can be read (a boot says why)."""
    folder = find_folder(os.environ.get("FRAMEWORK_CONFIG_DIR") or None, Path.cwd(), [])
    try:
        content = read_yaml(folder / "feature_categories.yml") if folder is not None else None
    except YamlError:
        return None
    categories = content.get("feature_categories") if is_mapping(content) else None
    return [str(name) for name in categories] if is_mapping(categories) and categories else None


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _text(found: Sequence[Finding]) -> None:
    for one in found:
        click.echo(f"{shown(one.path)}:{one.line}:{one.column}: {one.code} {one.message}: {one.fix}")


def _json(found: Sequence[Finding]) -> None:
    click.echo(json.dumps([_fields(one) for one in found], indent=2))


def _fields(one: Finding) -> dict[str, object]:
    return {**one._asdict(), "path": shown(one.path), "name": RULES[one.code].name}


def _github(found: Sequence[Finding]) -> None:
    for one in found:
        place = {
            "file": shown(one.path),
            "line": one.line,
            "col": one.column,
            "endLine": one.end_line,
            "title": one.code,
        }
        words = ",".join(f"{name}={_escaped(str(value), ',:')}" for name, value in place.items())
        click.echo(f"::error {words}::{_escaped(f'{one.message}: {one.fix}')}")


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(letter):02X}" if letter in f"%\r\n{more}" else letter for letter in text)


_FORMS: Mapping[str, Callable[[Sequence[Finding]], None]] = {"text": _text, "json": _json, "github": _github}


def _list() -> str:
    width = max(len(rule.name) for rule in RULES.values())
    return "\n".join(f"{rule.code}  {rule.name:{width}}  {rule.says}" for rule in RULES.values())


def explanation(rule: Rule) -> str:
    """A code explained whole: what, why, a bad and a good example, how to waive it."""
    waiver = f"# {rule.code}: the reason, in two words at least" if rule.code < "SEW100" else "It cannot be waived."
    parts = (
        f"{rule.code} {rule.name}: {rule.says}",
        _wrapped(rule.why),
        _wrapped(f"Fix: {rule.fix}."),
        f"Bad:\n{_indented(rule.bad)}",
        f"Good:\n{_indented(rule.good)}",
        f"Waive, on the line of the finding or directly above it:\n    {waiver}",
    )
    return "\n\n".join(parts)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, min(shutil.get_terminal_size().columns, _WIDEST), break_long_words=False)


def _indented(code: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in code.strip().splitlines())
