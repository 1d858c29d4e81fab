"""Waivers: ``# SEW007: why not here``, on the line of a finding or above it. A waiver that is none is a finding itself."""

import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from framework.devtools.lint.module import Module

PREFIX = "SEW"
# Not `# noqa`: ruff reports codes that it does not know, and has no place for a reason. Two words at least, because ruff
# takes one word after a colon for an annotation that was commented out.
_SUPPRESSION = re.compile(rf"#\s*(?P<codes>{PREFIX}\w*(?:\s*,\s*{PREFIX}\w*)*)(?P<colon>\s*:)?(?P<reason>[^#]*)")
_WORDS = re.compile(r"[^\W\d_]\w*(?:\W+\w+)*[^\W\d_]")


class Suppression(NamedTuple):
    """``codes`` are waived on line ``target``, the comment's own or the one that it stands above. No reason: ""."""

    line: int
    column: int
    target: int
    codes: tuple[str, ...]
    reason: str


def read_suppressions(module: Module) -> list[Suppression]:
    """Every waiver of a file."""
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
    # One word is no reason, and ruff takes "# SEW001: word" for an annotation that was commented out.
    return len(reason.split()) > 1 and _WORDS.search(reason) is not None


def _comments(text: str) -> dict[int, tuple[int, str, bool]]:
    """Line -> column, text, and whether the comment has the line for itself."""
    found: dict[int, tuple[int, str, bool]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                line, column = token.start
                found[line] = (column, token.string, not token.line[:column].strip())
    except (tokenize.TokenError, SyntaxError):
        return found  # the parser has read the file, so this is about its very end
    return found
