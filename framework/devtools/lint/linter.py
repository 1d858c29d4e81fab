"""Check a workspace with the selected rules, and remove the suppressed findings."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.module import Module
from framework.devtools.lint.registry import (
    RULES,
    SUPPRESSION_OF_UNKNOWN_CODE,
    SUPPRESSION_WITHOUT_REASON,
    UNREADABLE,
    UNUSED_SUPPRESSION,
)
from framework.devtools.lint.rule import CallSite, LintFinding, LintRule, Matches, last_line
from framework.devtools.lint.suppressions import Suppression, read_suppressions
from framework.devtools.lint.workspace import Workspace
from framework.messages import did_you_mean

CodeFilter = Callable[[str, Path], bool]
"""Returns whether a code is selected for a file."""


def lint(tree: Workspace, wanted: Collection[Path], applies: CodeFilter) -> tuple[list[LintFinding], int]:
    """Return the findings in the ``wanted`` files, sorted, and the number of concrete workers in them."""
    found = {_key(one): one for one in _unreadable_findings(tree)}
    classes = ClassIndex(tree)
    for module in tree.modules:
        for one in _module_findings(module, classes, tree):
            found.setdefault(_key(one), one)
    for worker in classes.workers:
        for rule in RULES.values():
            if rule.check_worker is not None:
                for one in _findings(rule, rule.check_worker(worker, classes)):
                    found.setdefault(_key(one), one)
    chosen = [one for one in found.values() if one.path in wanted and applies(one.code, one.path)]
    modules = {module.path: module for module in tree.modules if module.path in wanted}
    workers = sum(not worker.abstract and worker.module.path in wanted for worker in classes.workers)
    return sorted(_apply_suppressions(chosen, modules, applies)), workers


def _key(one: LintFinding) -> tuple[Path, int, int, str]:
    return one.path, one.line, one.column, one.code


def _unreadable_findings(tree: Workspace) -> Iterator[LintFinding]:
    for path, error in tree.unreadable:
        message = f"the file {error.reason}"
        yield LintFinding(path, error.line, error.column, error.line, UNREADABLE, message, RULES[UNREADABLE].fix)


def _module_findings(module: Module, classes: ClassIndex, tree: Workspace) -> Iterator[LintFinding]:
    sites = [CallSite(tree, classes, module, node) for node in module.calls]
    for rule in RULES.values():
        if rule.check_module is not None:
            yield from _findings(rule, rule.check_module(module, classes))
        if rule.check_call is not None:
            for site in sites:
                yield from _findings(rule, rule.check_call(site))


def _findings(rule: LintRule, hits: Matches) -> Iterator[LintFinding]:
    for one in hits:
        line, column = one.node.lineno, one.module.column(one.node)
        yield LintFinding(
            one.module.path, line, column, last_line(one.node), rule.code, one.message, one.fix or rule.fix
        )


def _apply_suppressions(
    found: list[LintFinding], modules: Mapping[Path, Module], applies: CodeFilter
) -> Iterator[LintFinding]:
    suppressions = {path: read_suppressions(module) for path, module in modules.items()}
    used: set[tuple[Path, Suppression, str]] = set()
    for one in found:
        holds = [
            suppression
            for suppression in suppressions.get(one.path, ())
            if one.code in suppression.codes and one.line <= suppression.target <= one.end_line
        ]
        used.update((one.path, suppression, one.code) for suppression in holds)
        if not any(suppression.reason for suppression in holds):
            yield one
    for path, of_file in suppressions.items():
        for suppression in of_file:
            # A code that is not selected was not checked, so its suppression may be needed.
            needed = {
                code for code in suppression.codes if (path, suppression, code) in used or not applies(code, path)
            }
            for code, message in _suppression_faults(suppression, needed):
                if applies(code, path):
                    yield LintFinding(
                        path, suppression.line, suppression.column, suppression.line, code, message, RULES[code].fix
                    )


def _can_be_suppressed(code: str) -> bool:
    return code not in (UNREADABLE, SUPPRESSION_WITHOUT_REASON, SUPPRESSION_OF_UNKNOWN_CODE, UNUSED_SUPPRESSION)


def _suppression_faults(suppression: Suppression, needed: Collection[str]) -> Iterator[tuple[str, str]]:
    known = [code for code in suppression.codes if code in RULES and _can_be_suppressed(code)]
    for code in suppression.codes:
        if code not in known:
            hint = did_you_mean(code, filter(_can_be_suppressed, RULES))
            yield SUPPRESSION_OF_UNKNOWN_CODE, f"{code} is no code that can be suppressed{hint}"
    if known and not suppression.reason:
        yield (
            SUPPRESSION_WITHOUT_REASON,
            f"the suppression of {' and '.join(known)} gives no reason (two words at least)",
        )
    for code in known:
        if code not in needed:
            yield UNUSED_SUPPRESSION, f"{code} suppresses nothing here"
