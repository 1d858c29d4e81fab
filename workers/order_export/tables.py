"""The orders, the exports of them, and the parts of each export."""

from typing import Final

from sqlalchemy import Column, ForeignKey, Integer, MetaData, String, Table, Text

metadata: Final = MetaData()

orders: Final = Table(
    "order_export_orders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("placed_at", String(19), nullable=False),
    Column("customer", Text, nullable=False),
    Column("country", String(2), nullable=False),
    Column("items", Integer, nullable=False),
    Column("total_cents", Integer, nullable=False),
    Column("note", Text, nullable=False),
)

# path is null until the file is there.
exports: Final = Table(
    "order_export_exports",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("format", String(4), nullable=False),
    Column("task_id", String(32)),
    Column("path", Text),
    sqlite_autoincrement=True,
)

# rows is null until the part's file is there.
parts: Final = Table(
    "order_export_parts",
    metadata,
    Column("export_id", Integer, ForeignKey(exports.c.id, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("first_id", Integer, nullable=False),
    Column("last_id", Integer, nullable=False),
    Column("rows", Integer),
)
