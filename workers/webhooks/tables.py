"""The rows of the webhooks: hooks, events, and one delivery for each pair of them."""

from typing import Final

from sqlalchemy import JSON, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text

metadata: Final = MetaData()

# disabled_because is null while the hook is called; enabled_at is when failures began to count.
hooks: Final = Table(
    "webhooks_hooks",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("event_names", JSON, nullable=False),
    Column("enabled_at", Double, nullable=False),
    Column("disabled_because", Text),
    # Ids are never used again: a late job of a removed hook must not call another one.
    sqlite_autoincrement=True,
)

events: Final = Table(
    "webhooks_events",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(60), nullable=False),
    Column("payload", JSON, nullable=False),
    Column("at", Double, nullable=False),
    sqlite_autoincrement=True,
)

# state: pending, delivered, failed. status and note are of the last attempt; excerpt is the beginning of the last answer.
deliveries: Final = Table(
    "webhooks_deliveries",
    metadata,
    Column("event_id", Integer, ForeignKey("webhooks_events.id", ondelete="CASCADE"), primary_key=True),
    Column("hook_id", Integer, ForeignKey("webhooks_hooks.id", ondelete="CASCADE"), primary_key=True),
    Column("state", String(10), nullable=False, default="pending"),
    Column("at", Double, nullable=False),
    Column("status", Integer),
    Column("note", Text),
    Index("webhooks_deliveries_hook", "hook_id", "at"),
    Index("webhooks_deliveries_at", "at"),
)
