"""Test suppressions: the places where they apply, and invalid ones, which are findings."""

import pytest

from framework.devtools.lint.linter import GITLAB, SETS, LintConfig
from tests.devtools.lint.conftest import LintFiles, codes, worker


@pytest.mark.parametrize(
    "lines",
    [
        ("idempotent = False  # SEW001: a second mail does no harm",),
        ("# SEW001: a second mail does no harm", "idempotent = False"),
        ("# Mails are cheap.", "# SEW001: a second mail does no harm,", "# and a lost one does", "idempotent = False"),
        ("idempotent = False  # noqa: FBT003  # SEW001: a second mail does no harm",),
        ("idempotent = False  # SEW001: a second mail does no harm  # noqa: FBT003",),
        ("idempotent = (", "    False  # SEW001: a second mail does no harm", ")"),
        (
            "# SEW001, SEW013: a mail for every feature, and twice does no harm",
            "idempotent = False; feature_category = 'not_owned'",
        ),
    ],
)
def test_suppression_at_or_above_the_statement_holds(lines: tuple[str, ...], lint_files: LintFiles):
    assert not lint_files({"workers/mail.py": worker(*lines)})


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (("idempotent = False  # SEW001",), [("SEW001", 5), ("SEW101", 5)]),
        (("idempotent = False  # SEW001:",), [("SEW001", 5), ("SEW101", 5)]),
        (("idempotent = False  # SEW001: harmless",), [("SEW001", 5), ("SEW101", 5)]),
        (("idempotent = False  # SEW001: ... ---",), [("SEW001", 5), ("SEW101", 5)]),
        (("idempotent = False  # SEW001 does no harm",), [("SEW001", 5), ("SEW101", 5)]),
        (("idempotent = False  # SEW1: does no harm",), [("SEW001", 5), ("SEW102", 5)]),
        (("idempotent = False  # SEW013: does no harm",), [("SEW001", 5), ("SEW103", 5)]),
        (("# SEW001: does no harm", "", "idempotent = False"), [("SEW103", 5), ("SEW001", 7)]),
        (("idempotent = True  # SEW001: does no harm",), [("SEW103", 5)]),
        (("idempotent = False  # SEW001, SEW013: does no harm",), [("SEW103", 5)]),
        (("idempotent = True  # SEW101: does no harm",), [("SEW102", 5)]),
    ],
)
def test_suppression_invalid_is_found(lines: tuple[str, ...], wanted: list[tuple[str, int]], lint_files: LintFiles):
    assert codes(lint_files({"workers/mail.py": worker(*lines)})) == wanted


def test_suppression_in_a_head_of_several_lines_holds(lint_files: LintFiles):
    text = (
        "from datetime import datetime\nfrom framework import ApplicationWorker, Deduplicate\n"
        "from workers.base import TeamWorker\n\n\n"
        "class MailWorker(\n    TeamWorker,\n    abstract=False,  # SEW021: one mail a day\n):\n"
        "    urgency = 'throttled'\n\n"
        "    def perform(\n        self,\n        *,\n        mail_id,\n        at: int = 1,  # SEW022: callers of old\n    ):\n"
        "        try:\n            return\n"
        "        except (\n            OSError,\n            BaseException,  # SEW027: nothing may get out\n        ):\n"
        "            pass  # SEW027: too far away\n"
    )
    assert codes(lint_files({"workers/mail.py": text})) == [("SEW103", 24)]


def test_suppression_in_a_string_is_ignored(lint_files: LintFiles):
    lines = ('NOTE = "# SEW001: in a string"', "# GitLab's rule SEW001: see the guide")
    assert not lint_files({"workers/mail.py": worker(*lines)})


def test_suppression_in_a_base_holds_for_its_children(lint_files: LintFiles):
    base = (
        "from workers.base import TeamWorker\n\n\nclass SilentWorker(TeamWorker, abstract=True):\n"
        "    defer_on_health = None  # SEW007: reads files only\n"
    )
    child = worker(bases="SilentWorker", head="from workers.silent import SilentWorker")
    assert not lint_files({"workers/silent.py": base, "workers/mail.py": child})
    unexcused = base.partition("  #")[0] + "\n"
    assert codes(lint_files({"workers/silent.py": unexcused})) == [("SEW007", 5)]


def test_suppression_of_unselected_code_is_not_checked(lint_files: LintFiles, tmp_path):
    file = {"workers/mail.py": worker("idempotent = True  # SEW001: does no harm")}
    assert codes(lint_files(file)) == [("SEW103", 5)]
    for config in (
        LintConfig(tmp_path, SETS[GITLAB], ignore=frozenset({"SEW001"})),
        LintConfig(tmp_path, SETS[GITLAB], ignore=frozenset({"SEW103"})),
        LintConfig(tmp_path, select=frozenset({"SEW007", "SEW103"})),
        LintConfig(tmp_path, SETS[GITLAB], per_file_ignores={"workers/m*.py": frozenset({"SEW001"})}),
    ):
        assert not lint_files(file, config=config)
