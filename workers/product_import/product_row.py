"""Check a row of the spreadsheet, and name its faults in words for the shop."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

TAX_PERCENT: Final[Mapping[str, int]] = {"books": 7, "food": 7, "garden": 19, "tools": 19}
"""The categories of the shop, and the tax on each."""


class ProductRow(BaseModel):
    """One product as a spreadsheet has it."""

    # Further columns of the shop are allowed.
    model_config = ConfigDict(extra="ignore", str_strip_whitespace=True)

    sku: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    category: str
    price: Annotated[Decimal, Field(ge=0, max_digits=9, decimal_places=2)]

    @field_validator("category")
    @classmethod
    def _check_category(cls, category: str) -> str:
        if category.lower() not in TAX_PERCENT:
            raise ValueError(f"should be one of {', '.join(TAX_PERCENT)}")
        return category.lower()

    @property
    def net_cents(self) -> int:
        """The price without tax."""
        return int(self.price * 100)


REQUIRED_COLUMNS: Final = tuple(ProductRow.model_fields)


def read_product(cells: Mapping[str, str]) -> ProductRow | str:
    """Return the product, or every fault of the row."""
    try:
        return ProductRow.model_validate(cells)
    except ValidationError as error:
        return "; ".join(f"{problem['loc'][0]}: {_error_text(problem['msg'])}" for problem in error.errors())


def _error_text(message: str) -> str:
    text = message.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
