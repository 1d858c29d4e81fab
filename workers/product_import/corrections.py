"""Correct cells whose meaning is beyond doubt: a decimal comma, a currency, another word for a category. Pure."""

import re
from collections.abc import Mapping
from typing import Final

_CURRENCY: Final = re.compile(r"^(?:€|EUR|\$|USD)?\s*([0-9.,]+)\s*(?:€|EUR|\$|USD)?$", re.IGNORECASE)
# 1.299,50 and 1,299.50 name the thousands and the decimals; 1,299 may be either, so it stays as it is.
_DECIMAL_COMMA: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+),([0-9]{1,2})")
_THOUSANDS_COMMA: Final = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+)\.([0-9]{1,2})")
_OTHER_WORDS: Final[Mapping[str, str]] = {
    "book": "books",
    "groceries": "food",
    "gardening": "garden",
    "tool": "tools",
    "hardware": "tools",
}


def corrected(cells: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the cells, and a sentence for each that was corrected."""
    meant = {"price": _price(cells.get("price", "")), "category": _category(cells.get("category", ""))}
    changes = {name: cell for name, cell in meant.items() if cell is not None and cell != cells.get(name)}
    return {**cells, **changes}, [f"{name}: {cells[name]!r} is read as {cell}" for name, cell in changes.items()]


def _price(text: str) -> str | None:
    found = _CURRENCY.fullmatch(text.strip())
    if found is None:
        return None
    amount = found[1]
    for form, separator in ((_DECIMAL_COMMA, "."), (_THOUSANDS_COMMA, ",")):
        if number := form.fullmatch(amount):
            return f"{number[1].replace(separator, '')}.{number[2]}"
    return amount


def _category(text: str) -> str | None:
    return _OTHER_WORDS.get(text.strip().lower())
