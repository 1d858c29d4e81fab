"""Find the nearest known word to a misspelt one, for every message that can offer it."""

import difflib
from collections.abc import Iterable


def nearest(word: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known word closest to ``word``, or the only one that begins with it; None when nothing is close."""
    if not isinstance(word, str):
        return None
    candidates = list(known)
    matches = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    if not matches:
        by_lower = {candidate.lower(): candidate for candidate in candidates}
        matches = [by_lower[word.lower()]] if word.lower() in by_lower else []
    if not matches and len(word) > 2:
        longer = [candidate for candidate in candidates if candidate.startswith(word)]
        matches = longer if len(longer) == 1 else []
    return matches[0] if matches else None


def join_names(known: Iterable[str], max_names: int = 20) -> str:
    """Return the names in the given order: at most ``max_names``, then how many more there are."""
    names = list(known)
    more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return a parenthesis to append to a message; "" when nothing is close, or ``word`` is known itself."""
    match = nearest(word, known)
    return f" (did you mean {match!r}?)" if match not in (None, word) else ""
