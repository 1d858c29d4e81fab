"""Small trees of workers, linted in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from framework.devtools.lint.config import LintConfig
from framework.devtools.lint.linter import lint
from framework.devtools.lint.registry import GITLAB, SETS
from framework.devtools.lint.rule import LintFinding
from framework.devtools.lint.workspace import ApplicationFacts, read_workspace

CATEGORIES = ("global_search", "onboarding")

RELEASED = {"Billing::SendInvoiceWorker": "workers.billing.invoices.SendInvoiceWorker"}
"""The class that the example of SEW032 moves."""

KNOWN = ApplicationFacts(CATEGORIES, released=RELEASED)

LintFiles = Callable[..., list[LintFinding]]

BASE = '''
"""What the workers of the team share."""

from framework import ApplicationWorker, DeferOnHealth


class TeamWorker(ApplicationWorker, abstract=True):
    """The usual choices."""

    feature_category = "global_search"
    data_consistency = "sticky"
    idempotent = True
    defer_on_health = DeferOnHealth(database="main")
'''


def worker(
    *lines: str, name: str = "Mail", bases: str = "TeamWorker", head: str = "from workers.base import TeamWorker"
) -> str:
    """A file with one worker; the lines of its body stand from line 5 on, if the head is one."""
    body = "".join(f"    {line}\n" for line in (*lines, "def perform(self, mail_id: int) -> None: ..."))
    return f"{head}\n\n\nclass {name}Worker({bases}):\n{body}"


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """The files, in a package ``workers`` that has the base of the examples."""
    for name, text in {"workers/__init__.py": "", "workers/base.py": BASE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def lint_files(tmp_path: Path) -> LintFiles:
    """Lint the given files (or, of them, only those named); paths in findings are below ``tmp_path``."""

    def run(
        files: Mapping[str, str | bytes], *only: str, config: LintConfig | None = None, known: ApplicationFacts = KNOWN
    ) -> list[LintFinding]:
        write(tmp_path, files)
        chosen = config or LintConfig(tmp_path, SETS[GITLAB])
        paths = [tmp_path / name for name in only or ("workers",)]
        tree, wanted = read_workspace(paths, tmp_path, chosen.excludes, known)
        return lint(tree, wanted, chosen.applies)[0]

    return run


def codes(found: list[LintFinding]) -> list[tuple[str, int]]:
    """What is found, shortly."""
    return [(one.code, one.line) for one in found]
