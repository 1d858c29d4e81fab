"""The price that a customer pays: the net price and the category's tax, in whole cents, half a cent rounded up."""

from typing import Any

from sqlalchemy import update

from workers.database import process_engine, writing
from workers.product_import.product_row import TAX_PERCENT
from workers.product_import.tables import metadata, products


def recalculate_category(category: str) -> int:
    """Write the price of every product of the category; return their number, 0 for a category that is gone."""
    return _recalculate(category, products.c.category == category) if category in TAX_PERCENT else 0


def recalculate_product(sku: str) -> int:
    """Write the product's price; return 0 when there is no such product."""
    return sum(
        _recalculate(category, (products.c.sku == sku) & (products.c.category == category)) for category in TAX_PERCENT
    )


def _recalculate(category: str, which: Any) -> int:
    gross = (products.c.net_cents * (100 + TAX_PERCENT[category]) + 50) // 100
    with writing(process_engine("product_import", metadata)) as connection:
        return connection.execute(update(products).where(which).values(gross_cents=gross)).rowcount
