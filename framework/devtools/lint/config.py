"""Read ``[tool.lint_workers]`` of pyproject.toml: the codes that apply to each file."""

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from framework.devtools.lint.registry import DEFAULT, RULES, SETS
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.messages import did_you_mean
from framework.typeguards import is_list, is_mapping, short_repr

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
        """Return whether the code is selected for this file."""
        if code in self.ignore or code not in self.select:
            return False
        return not any(code in codes and self._is(path, pattern) for pattern, codes in self.per_file_ignores.items())

    def excludes(self, path: Path) -> bool:
        """Return whether the file is excluded."""
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
