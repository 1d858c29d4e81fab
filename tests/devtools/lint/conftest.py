"""Create small trees of workers, and lint them in this process."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from framework.devtools.lint.linter import GITLAB, SETS, LintConfig, lint
from framework.devtools.lint.rule import LintFinding
from framework.devtools.lint.workspace import ApplicationFacts, read_workspace

CATEGORIES = ("global_search", "onboarding")

RELEASED = {"Billing::SendInvoiceWorker": "workers.billing.invoices.SendInvoiceWorker"}
"""The class that the example of SEW032 moves."""

KNOWN = ApplicationFacts(CATEGORIES, released=RELEASED)

LintFiles = Callable[..., list[LintFinding]]

BASE = '''
"""The attributes that the workers of the team share."""

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
    """Return a file with one worker; with a head of one line its body starts at line 5."""
    body = "".join(f"    {line}\n" for line in (*lines, "def perform(self, mail_id: int) -> None: ..."))
    return f"{head}\n\n\nclass {name}Worker({bases}):\n{body}"


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write the files and a package ``workers`` with the base class of the examples."""
    for name, text in {"workers/__init__.py": "", "workers/base.py": BASE, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.fixture
def lint_files(tmp_path: Path) -> LintFiles:
    """Return a function that writes files and lints them all, or only those in ``only``; paths are below ``tmp_path``."""

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
    """Return the code and the line of each finding."""
    return [(one.code, one.line) for one in found]
