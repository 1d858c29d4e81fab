"""List all codes: SEW001 to SEW015 are GitLab's rules, SEW016 to SEW032 this framework's, from SEW100 on the linter's."""

from collections.abc import Mapping

from framework.devtools.lint.rule import LintRule
from framework.devtools.lint.rules import (
    arguments,
    databases,
    declaring,
    forbidden_uses,
    perform_body,
    pushing,
    resources,
    wire_names,
)

UNREADABLE = "SEW100"
SUPPRESSION_WITHOUT_REASON = "SEW101"
SUPPRESSION_OF_UNKNOWN_CODE = "SEW102"
UNUSED_SUPPRESSION = "SEW103"

_PLAIN = """
from workers.base import TeamWorker


class ReindexWorker(TeamWorker):{comment}
{line}    def perform(self) -> None: ...
"""
_REASON = "    idempotent = False  # SEW001: a second report does no harm\n\n"

_LINTER_RULES = (
    LintRule(
        code=UNREADABLE,
        name="unreadable",
        summary="A file is no Python source; the other files are checked.",
        fix="correct it, or exclude it with exclude",
        why="Neither the linter nor a process can read such a file.",
        bad="class ReindexWorker(  # here\n",
        good=_PLAIN.format(comment="", line=""),
    ),
    LintRule(
        code=SUPPRESSION_WITHOUT_REASON,
        name="suppression-reason",
        summary="A suppression without a reason has no effect.",
        fix="write why, in two words at least: # SEW001: a second mail does no harm",
        why="Every review asks for the reason, and the rule stays off for ever.",
        bad=_PLAIN.format(comment="", line="    idempotent = False  # SEW001  # here\n\n"),
        good=_PLAIN.format(comment="", line=_REASON),
    ),
    LintRule(
        code=SUPPRESSION_OF_UNKNOWN_CODE,
        name="suppression-code",
        summary="A suppression names an unknown code.",
        fix="write the code of the finding: `application-worker lint-workers --list`",
        why="The code is usually misspelt; the finding is still reported.",
        bad=_PLAIN.format(comment="  # SEW999: no code pushes it  # here", line=""),
        good=_PLAIN.format(comment="", line=_REASON),
    ),
    LintRule(
        code=UNUSED_SUPPRESSION,
        name="unused-suppression",
        summary="A suppression has no finding.",
        fix="remove it, or put it on the line of the finding or directly above",
        why="The excused code was corrected or has moved. Left there, the suppression hides the next fault on that "
        "line.",
        bad=_PLAIN.format(comment="  # SEW001: a second report does no harm  # here", line=""),
        good=_PLAIN.format(comment="", line=""),
    ),
)

RULES: Mapping[str, LintRule] = {
    rule.code: rule
    for rule in sorted(
        (
            *declaring.RULES, *databases.RULES, *resources.RULES, *arguments.RULES, *pushing.RULES,
            *forbidden_uses.RULES, *perform_body.RULES, *wire_names.RULES, *_LINTER_RULES,
        ),
        key=lambda rule: rule.code,
    )
}  # fmt: skip
"""Each code -> its rule, sorted by code."""

_GITLAB_CODES = frozenset(
    {
        "SEW001", "SEW002", "SEW003", "SEW004", "SEW005", "SEW006", "SEW007", "SEW009", "SEW012", "SEW013", "SEW014", "SEW015",
        "SEW020", "SEW021", "SEW024",
    }
)  # fmt: skip
"""GitLab's guidelines for hundreds of workers of many teams: each worker declares its properties and leaves routing to rules."""

DEFAULT, GITLAB = "default", "gitlab"
SETS: Mapping[str, frozenset[str]] = {DEFAULT: frozenset(RULES) - _GITLAB_CODES, GITLAB: frozenset(RULES)}
"""The sets of codes by name. ``default``: likely faults, checked without any configuration. ``gitlab``: all codes."""


def set_of(code: str) -> str:
    """Return the smallest set that has the code."""
    return DEFAULT if code in SETS[DEFAULT] else GITLAB
