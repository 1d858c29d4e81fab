"""Check an offer, and name each fault in words for its seller. Pure."""

from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final

MAX_TITLE: Final = 80
MAX_PRICE: Final = Decimal(100_000)
BANNED_WORDS: Final = ("miracle", "cures")
GATED_BRANDS: Final = ("Rolox", "Luxio")
"""Brands that only their own shops may sell."""


def faults_of(cells: Mapping[str, str]) -> list[str]:
    """Return every fault of the offer; an empty list for one that can be enrolled."""
    return [*_title_faults(cells.get("title", "")), *_ean_faults(cells.get("ean", "")), *_other_faults(cells)]


def has_valid_check_digit(ean: str) -> bool:
    """Return whether the last digit of an EAN-13 is the one that the others demand (GS1 General Specifications, 7.9)."""
    digits = [int(digit) for digit in ean]
    return (10 - sum(digits[:12:2]) - 3 * sum(digits[1:12:2])) % 10 == digits[12]


def _title_faults(title: str) -> Iterator[str]:
    if not title:
        yield "the title is missing"
    elif len(title) > MAX_TITLE:
        yield f"the title has {len(title)} characters, {MAX_TITLE} are allowed"
    for word in BANNED_WORDS:
        if word in title.lower():
            yield f"the title promises what no product can: {word!r}"


def _ean_faults(ean: str) -> Iterator[str]:
    if len(ean) != 13 or not (ean.isascii() and ean.isdigit()):
        yield f"the EAN {ean!r} is not 13 digits"
    elif not has_valid_check_digit(ean):
        yield f"the EAN {ean} has a wrong check digit"


def _other_faults(cells: Mapping[str, str]) -> Iterator[str]:
    price = cells.get("price", "")
    try:
        amount = Decimal(price)
    except InvalidOperation:
        yield f"the price {price!r} is no number"
    else:
        if not (amount.is_finite() and 0 < amount <= MAX_PRICE):
            yield f"the price {price} is not between 0 and {MAX_PRICE:,}"
    if cells.get("brand") in GATED_BRANDS:
        yield f"the brand {cells['brand']} may be sold by its own shop only"
    if not cells.get("picture", "").startswith("https://"):
        yield "there is no picture with an https address"
