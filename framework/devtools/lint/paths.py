"""Check the workers below files and folders, and name the installed commands in the findings."""

import gc
from collections.abc import Sequence
from pathlib import Path

from framework.command_line import with_local_commands
from framework.devtools.lint.config import LintConfig
from framework.devtools.lint.linter import lint
from framework.devtools.lint.rule import LintFinding
from framework.devtools.lint.workspace import ApplicationFacts, Workspace, read_workspace


def lint_paths(
    paths: Sequence[Path], config: LintConfig, facts: ApplicationFacts
) -> tuple[list[LintFinding], int, int, Workspace]:
    """Return the findings, the number of checked workers and files, and the files."""
    # A syntax tree has no garbage, but millions of nodes that a collection would visit.
    gc.disable()
    try:
        tree, wanted = read_workspace(paths, Path.cwd(), config.excludes, facts)
        found, workers = lint(tree, wanted, config.applies)
    finally:
        gc.enable()
    return [one._replace(fix=with_local_commands(one.fix)) for one in found], workers, len(wanted), tree
