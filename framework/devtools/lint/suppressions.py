"""Read suppressions: ``# SEW007: reason``, on a line of a finding or above it. An invalid suppression is itself a finding."""

import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from framework.devtools.lint.module import Module

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
    """Return every suppression of a file."""
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
