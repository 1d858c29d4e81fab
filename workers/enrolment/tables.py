"""The offers of sellers, as their files have them, and what became of each."""

from typing import Final

from sqlalchemy import JSON, Column, MetaData, String, Table, Text

metadata: Final = MetaData()

# listing is null until the product is enrolled.
offers: Final = Table(
    "enrolment_offers",
    metadata,
    Column("seller", String(40), primary_key=True),
    Column("sku", String(40), primary_key=True),
    Column("cells", JSON, nullable=False),
    Column("listing", Text),
)
