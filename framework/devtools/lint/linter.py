"""List the codes, read configuration and suppressions, and check the workers below files and folders.

SEW001 to SEW015 are GitLab's rules, SEW016 to SEW038 this framework's, and those from SEW100 on the linter's. The configuration is
``[tool.lint_workers]`` of pyproject.toml: the codes that apply to each file. A suppression is ``# SEW007: reason``, on a line of a
finding or above it; an invalid one is itself a finding.
"""

import gc
import io
import re
import tokenize
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from framework.command_line import with_local_commands
from framework.devtools.lint.classes import ClassIndex
from framework.devtools.lint.module import Module
from framework.devtools.lint.rule import CallSite, LintFinding, LintRule, Matches, last_line
from framework.devtools.lint.rules import databases, declaring, perform_body, pushing, resources
from framework.devtools.lint.workspace import ApplicationFacts, Workspace, read_workspace
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.text import did_you_mean
from framework.typeguards import is_list, is_mapping, short_repr

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
            *declaring.RULES, *databases.RULES, *resources.RULES, *pushing.RULES, *perform_body.RULES, *_LINTER_RULES,
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


FILE = "pyproject.toml"
SECTION = "tool.lint_workers"
KEYS = ("select", "ignore", "per-file-ignores", "exclude")


@dataclass(frozen=True, slots=True)
class LintConfig:
    """The configuration. Patterns match paths relative to ``root``, the folder of pyproject.toml."""

    root: Path
    select: frozenset[str] = SETS[DEFAULT]
    ignore: frozenset[str] = frozenset()
    per_file_ignores: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    exclude: tuple[str, ...] = ()

    def applies(self, code: str, path: Path) -> bool:
        if code in self.ignore or code not in self.select:
            return False
        return not any(code in codes and self._is(path, pattern) for pattern, codes in self.per_file_ignores.items())

    def excludes(self, path: Path) -> bool:
        return any(self._is(path, pattern) for pattern in self.exclude)

    def _is(self, path: Path, pattern: str) -> bool:
        seen = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()
        return fnmatch(seen, pattern) or fnmatch(seen, f"{pattern.rstrip('/')}/*")


def read_config(here: Path) -> LintConfig:
    """Read the section of the nearest pyproject.toml in ``here`` or above it. Without one, the set ``default`` applies.

    Raises ConfigurationError with every problem in it.
    """
    path = next((folder / FILE for folder in (here, *here.parents) if (folder / FILE).is_file()), None)
    if path is None:
        return LintConfig(here)
    try:
        section: Any = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("lint_workers", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError, AttributeError) as error:
        raise ConfigurationError([ConfigurationProblem(FILE, "", f"cannot be read: {error}")]) from None
    return _parse_section(path.parent, section)


def unknown_codes(codes: Collection[str], sets: Collection[str] = ()) -> list[str]:
    """Return a message for each word that is neither a code nor the name of one of the ``sets``."""
    known = (*RULES, *sets)
    wanted = "code or set" if sets else "code"
    return [f"there is no {wanted} {code!r}{did_you_mean(code, known)}" for code in codes if code not in known]


def expand_sets(words: Iterable[str]) -> frozenset[str]:
    """Return the codes of the words, each of which is a code or the name of a set."""
    return frozenset(code for word in words for code in SETS.get(word, (word,)))


def _parse_section(root: Path, section: Any) -> LintConfig:
    problems: list[ConfigurationProblem] = []
    if not is_mapping(section):
        raise ConfigurationError([ConfigurationProblem(FILE, SECTION, "is no table")])
    for key in section:
        if key not in KEYS:
            message = f"is no key of it{did_you_mean(key, KEYS)}; keys: {', '.join(KEYS)}"
            problems.append(ConfigurationProblem(FILE, f"{SECTION}.{key}", message))
    ignores = section.get("per-file-ignores", {})
    if not is_mapping(ignores):
        problems.append(ConfigurationProblem(FILE, f"{SECTION}.per-file-ignores", "is no table of patterns and codes"))
        ignores = {}
    config = LintConfig(
        root,
        expand_sets(_codes(section.get("select", [DEFAULT]), "select", problems, SETS)),
        _codes(section.get("ignore", []), "ignore", problems),
        {pattern: _codes(codes, f"per-file-ignores.{pattern}", problems) for pattern, codes in ignores.items()},
        tuple(_string_list(section.get("exclude", []), "exclude", problems)),
    )
    if problems:
        raise ConfigurationError(problems)
    return config


def _codes(value: Any, key: str, problems: list[ConfigurationProblem], sets: Collection[str] = ()) -> frozenset[str]:
    codes = _string_list(value, key, problems)
    problems.extend(ConfigurationProblem(FILE, f"{SECTION}.{key}", message) for message in unknown_codes(codes, sets))
    return frozenset(codes)


def _string_list(value: Any, key: str, problems: list[ConfigurationProblem]) -> list[str]:
    if is_list(value) and all(isinstance(one, str) for one in value):
        return value
    problems.append(ConfigurationProblem(FILE, f"{SECTION}.{key}", f"{short_repr(value)} is no list of strings"))
    return []


PREFIX = "SEW"
# Not `# noqa`: ruff reports unknown codes, and `noqa` has no reason.
_SUPPRESSION = re.compile(rf"#\s*(?P<codes>{PREFIX}\w*(?:\s*,\s*{PREFIX}\w*)*)(?P<colon>\s*:)?(?P<reason>[^#]*)")
_WORDS = re.compile(r"[^\W\d_]\w*(?:\W+\w+)*[^\W\d_]")


class Suppression(NamedTuple):
    """Suppress ``codes`` on line ``target``: the comment's own line or the one below it. ``reason`` is "" without a valid reason."""

    line: int
    column: int
    target: int
    codes: tuple[str, ...]
    reason: str


def read_suppressions(module: Module) -> list[Suppression]:
    return list(_iterate_suppressions(module.text)) if PREFIX in module.text else []


def _iterate_suppressions(text: str) -> Iterator[Suppression]:
    comments = _comments(text)
    alone = {line for line, (_, _, is_alone) in comments.items() if is_alone}
    for line, (column, comment, _) in comments.items():
        target = line
        while target in alone:
            target += 1
        for found in _SUPPRESSION.finditer(comment):
            codes = tuple(code.strip() for code in found["codes"].split(","))
            reason = found["reason"].strip() if found["colon"] else ""
            yield Suppression(line, column + found.start() + 1, target, codes, reason if _is_reason(reason) else "")


def _is_reason(reason: str) -> bool:
    # One word is no reason. Ruff also reports "# SEW001: word" as an annotation that was commented out.
    return len(reason.split()) > 1 and _WORDS.search(reason) is not None


def _comments(text: str) -> dict[int, tuple[int, str, bool]]:
    """Map each line to the column and text of its comment, and whether the line has no code."""
    found: dict[int, tuple[int, str, bool]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                found[line] = (column, token.string, not token.line[:column].strip())
    except (tokenize.TokenError, SyntaxError):
        # The parser accepted the file, so the error is at its very end.
        return found
    return found


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
