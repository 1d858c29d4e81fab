"""Define the tables of tasks, events and messages. ``migrations`` makes them; both are compared by a test."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

STATUSES = ("enqueue", "working", "finish", "failed", "error")
"""The statuses of an event; a task has a counter of each."""

OPEN_STATUSES = ("enqueue", "working")
"""The statuses of an event whose job has not ended."""

FAILED_STATUSES = ("failed", "error")
"""The statuses of an event whose job ended without doing its work."""

MAX_ID = 1 << 62
"""The largest id of an event or a message that may be asked for: databases store eight bytes."""

metadata = MetaData()

# SQLite numbers rows by itself only in a column of the type INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")


_DELETED = "state = 'deleted'"
_SINGLE = "task_id IS NULL AND ended_at IS NOT NULL"


def _counter(name: str) -> "Column[int]":
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


tasks = Table(
    "aw_tasks",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("worker", String(255)),
    Column("title", Text),
    Column("owner", String(255)),
    Column("tenant", String(255)),
    Column("result", Text),
    Column("created_at", Float, nullable=False),
    Column("closed_at", Float),
    Column("completed_at", Float),
    Column("cancelled_at", Float),
    _counter("total"),
    _counter("items"),
    *(_counter(status) for status in STATUSES),
    Index("aw_tasks_created", "created_at", "id"),
    Index("aw_tasks_owner", "owner", "created_at"),
    Index("aw_tasks_tenant", "tenant", "created_at"),
    Index("aw_tasks_completed", "completed_at"),
)
"""One row per task. The counters are kept in the transactions that change its events."""

events = Table(
    "aw_events",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("jid", String(255), nullable=False, unique=True),
    Column("task_id", String(32), ForeignKey("aw_tasks.id", ondelete="CASCADE")),
    Column("worker", String(255), nullable=False),
    Column("queue", String(255), nullable=False),
    Column("shard", String(64), nullable=False),
    Column("status", String(10), nullable=False),
    Column("state", String(24), nullable=False),
    Column("reason", Text),
    Column("error_class", String(255)),
    Column("params", Text),
    Column("whole", Boolean, nullable=False, server_default=text("false")),
    Column("items", Integer, nullable=False, server_default=text("1")),
    Column("runs", Integer, nullable=False, server_default=text("0")),
    Column("stands_for", String(255)),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("changed_at", Float, nullable=False),
    Column("payload", Text),
    Column("due_at", Float),
    Index("aw_events_task", "task_id", "status", "id"),
    Index("aw_events_open", "shard", "changed_at", postgresql_where=text("status IN ('enqueue', 'working')")),
    Index("aw_events_stands_for", "stands_for", postgresql_where=text("stands_for IS NOT NULL")),
    Index("aw_events_deleted", "shard", "changed_at", postgresql_where=text(_DELETED), sqlite_where=text(_DELETED)),
    Index("aw_events_single", "ended_at", postgresql_where=text(_SINGLE), sqlite_where=text(_SINGLE)),
)
"""One row per job. ``params`` is JSON, ``whole`` says whether it has every argument, ``stands_for`` is the job of a duplicate.

``payload`` and ``due_at`` are those of a job that the ledger may enqueue again: it has not ended, or no key of Redis had it.
"""

messages = Table(
    "aw_messages",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=True),
    Column("key", String(80), nullable=False, unique=True),
    Column("jid", String(255), nullable=False),
    Column("at", Float, nullable=False),
    Column("text", Text, nullable=False),
    Column("fields", Text),
    Index("aw_messages_jid", "jid", "id"),
)
"""One row per message of a job. ``key`` makes a repeated write harmless."""
