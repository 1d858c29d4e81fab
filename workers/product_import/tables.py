"""The rows of the import: an import, its rows as they were read, its batches, and the products."""

from typing import Final

from sqlalchemy import JSON, Boolean, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text

metadata: Final = MetaData()

_OF_IMPORT: Final = "product_import_imports.id"

# state: new, staged (its rows and batches are recorded, whole), finished, failed, cancelled.
imports: Final = Table(
    "product_import_imports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("path", Text, nullable=False),
    Column("state", String(10), nullable=False, default="new"),
    Column("columns", JSON),
    Column("reason", Text),
    Column("report", Text),
    # The task whose jobs import it (framework.tasks); null for an import without one.
    Column("task_id", String(32)),
    Column("created_at", Double, nullable=False),
    # Ids are never used again: a late job of a removed import must not meet another one.
    sqlite_autoincrement=True,
)

# outcome is null until the row's batch is done: created, updated, unchanged, outdated, review (its own job decides) or rejected.
rows: Final = Table(
    "product_import_rows",
    metadata,
    Column("import_id", Integer, ForeignKey(_OF_IMPORT, ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True, autoincrement=False),
    Column("sku", Text, nullable=False),
    Column("cells", JSON, nullable=False),
    Column("outcome", String(10)),
    Column("reason", Text),
    Index("product_import_rows_sku", "import_id", "sku"),
    Index("product_import_rows_outcome", "import_id", "outcome"),
)

batches: Final = Table(
    "product_import_batches",
    metadata,
    Column("import_id", Integer, ForeignKey(_OF_IMPORT, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("first_line", Integer, nullable=False),
    Column("last_line", Integer, nullable=False),
    Column("done", Boolean, nullable=False, default=False),
)

# Prices are cents. gross_cents is null, and the product not for sale, until its price was calculated.
products: Final = Table(
    "product_import_products",
    metadata,
    Column("sku", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("category", String(20), nullable=False),
    Column("net_cents", Integer, nullable=False),
    Column("gross_cents", Integer),
    Column("import_id", Integer, nullable=False),
    Index("product_import_products_category", "category"),
)
