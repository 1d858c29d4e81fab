"""Check every worker of an application: what a boot, a review and a deploy would find."""

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from framework.devtools.compat import manifest
from framework.devtools.compat.compare import compare_with, snapshot_of
from framework.devtools.lint.application import read_application
from framework.devtools.lint.linter import lint_paths, read_config
from framework.devtools.lint.workspace import find_module
from framework.errors import ConfigurationError, DeclarationError
from framework.terminal.output import display_path
from framework.terminal.project import Project, load_project


def check_workers(*modules: str) -> None:
    """Check the workers of these modules, or of the setting ``workers_module``, and fail with every finding at once.

    Checked are the declarations (attributes, arguments that JSON carries), the configuration (feature categories, routing rules,
    pause strategies, databases), the rules of ``lint-workers`` as pyproject.toml selects them, and, if there is a manifest of a
    release, the findings of ``check-compat``.

    Raises:
        AssertionError: with a line per finding.
    """
    __tracebackhide__ = True
    try:
        project = load_project(modules)
    except (ConfigurationError, DeclarationError) as error:
        raise AssertionError(f"no process would boot with these workers: {error}") from None
    findings = [*_lint_findings(modules or project.settings.workers_module), *_compat_findings(project)]
    if findings:
        head = f"{len(findings)} {'finding' if len(findings) == 1 else 'findings'} in the workers:"
        raise AssertionError("\n".join([head, *findings]))


def _lint_findings(modules: Sequence[str]) -> list[str]:
    here = Path.cwd()
    places = [place for name in modules if (place := find_module(name, [str(here), *sys.path])) is not None]
    found, *_ = lint_paths(places, read_config(here), read_application(here).facts)
    return [f"  {display_path(one.path)}:{one.line}: {one.code} {one.message}: {one.fix}" for one in found]


def _compat_findings(project: Project) -> list[str]:
    last = manifest.read_manifest(project.released, display_path(project.released))
    if last is None:
        return []
    today = snapshot_of(project, "today", datetime.now().astimezone().date())
    return [f"  {one}" for one in compare_with(project, last, today) if one.fails]
