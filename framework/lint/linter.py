"""Look at a tree with the rules that are chosen: findings out, those that are waived taken away."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from framework.lint.classes import Classes
from framework.lint.registry import RULES, UNREADABLE, UNUSED_WAIVER, WAIVER_OF_NOTHING, WAIVER_WITHOUT_REASON
from framework.lint.rule import Finding, Hits, Rule, Site, last_line
from framework.lint.source import Module
from framework.lint.tree import Tree
from framework.lint.waivers import Waiver, read_waivers
from framework.settings.suggest import did_you_mean

Applies = Callable[[str, Path], bool]
"""Whether a code is asked for in a file."""


def lint(tree: Tree, wanted: Collection[Path], applies: Applies) -> tuple[list[Finding], int]:
    """Every finding in the ``wanted`` files, in the order of files, lines and codes; and how many classes that run these have."""
    found = {_key(one): one for one in _unreadable(tree)}
    classes = Classes(tree)
    for module in tree.modules:
        for one in _of_module(module, classes, tree):
            found.setdefault(_key(one), one)
    for worker in classes.workers:
        for rule in RULES.values():
            if rule.of_worker is not None:
                for one in _findings(rule, rule.of_worker(worker, classes)):
                    found.setdefault(_key(one), one)
    chosen = [one for one in found.values() if one.path in wanted and applies(one.code, one.path)]
    modules = {module.path: module for module in tree.modules if module.path in wanted}
    workers = sum(not worker.abstract and worker.module.path in wanted for worker in classes.workers)
    return sorted(_after_waivers(chosen, modules, applies)), workers


def _key(one: Finding) -> tuple[Path, int, int, str]:
    return one.path, one.line, one.column, one.code


def _unreadable(tree: Tree) -> Iterator[Finding]:
    for path, error in tree.unreadable:
        message = f"the file {error.reason}"
        yield Finding(path, error.line, error.column, error.line, UNREADABLE, message, RULES[UNREADABLE].fix)


def _of_module(module: Module, classes: Classes, tree: Tree) -> Iterator[Finding]:
    sites = [Site(tree, classes, module, node) for node in module.calls]
    for rule in RULES.values():
        if rule.of_module is not None:
            yield from _findings(rule, rule.of_module(module, classes))
        if rule.of_call is not None:
            for site in sites:
                yield from _findings(rule, rule.of_call(site))


def _findings(rule: Rule, hits: Hits) -> Iterator[Finding]:
    for one in hits:
        line, column = one.node.lineno, one.module.column(one.node)
        yield Finding(one.module.path, line, column, last_line(one.node), rule.code, one.message, one.fix or rule.fix)


def _after_waivers(found: list[Finding], modules: Mapping[Path, Module], applies: Applies) -> Iterator[Finding]:
    waivers = {path: read_waivers(module) for path, module in modules.items()}
    used: set[tuple[Path, Waiver, str]] = set()
    for one in found:
        holds = [
            waiver
            for waiver in waivers.get(one.path, ())
            if one.code in waiver.codes and one.line <= waiver.target <= one.end_line
        ]
        used.update((one.path, waiver, one.code) for waiver in holds)
        if not any(waiver.reason for waiver in holds):
            yield one
    for path, of_file in waivers.items():
        for waiver in of_file:
            # Of a code that is not asked for here nobody can say that it is not needed.
            needed = {code for code in waiver.codes if (path, waiver, code) in used or not applies(code, path)}
            for code, message in _faults(waiver, needed):
                if applies(code, path):
                    yield Finding(path, waiver.line, waiver.column, waiver.line, code, message, RULES[code].fix)


def _can_be_waived(code: str) -> bool:
    return code not in (UNREADABLE, WAIVER_WITHOUT_REASON, WAIVER_OF_NOTHING, UNUSED_WAIVER)


def _faults(waiver: Waiver, needed: Collection[str]) -> Iterator[tuple[str, str]]:
    known = [code for code in waiver.codes if code in RULES and _can_be_waived(code)]
    for code in waiver.codes:
        if code not in known:
            hint = did_you_mean(code, filter(_can_be_waived, RULES))
            yield WAIVER_OF_NOTHING, f"{code} is no code that can be waived{hint}"
    if known and not waiver.reason:
        yield WAIVER_WITHOUT_REASON, f"the waiver of {' and '.join(known)} gives no reason (two words at least)"
    for code in known:
        if code not in needed:
            yield UNUSED_WAIVER, f"nothing here is waived by {code}"
