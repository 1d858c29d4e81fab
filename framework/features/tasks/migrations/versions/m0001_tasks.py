"""Make the tables of tasks, events and messages."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    _make_tasks()
    _make_events()
    _make_messages()


def downgrade() -> None:
    """Remove the tables, with all tasks."""
    for name in ("aw_messages", "aw_events", "aw_tasks"):
        op.drop_table(name)


def _counter(name: str) -> "sa.Column[int]":
    return sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))


def _id() -> "sa.Column[int]":
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column("id", kind, primary_key=True, autoincrement=True)


def _make_tasks() -> None:
    op.create_table(
        "aw_tasks",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("worker", sa.String(255)),
        sa.Column("title", sa.Text()),
        sa.Column("owner", sa.String(255)),
        sa.Column("tenant", sa.String(255)),
        sa.Column("result", sa.Text()),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("closed_at", sa.Float()),
        sa.Column("completed_at", sa.Float()),
        sa.Column("cancelled_at", sa.Float()),
        *(_counter(name) for name in ("total", "items", "enqueue", "working", "finish", "failed", "error")),
    )
    op.create_index("aw_tasks_created", "aw_tasks", ["created_at", "id"])
    op.create_index("aw_tasks_owner", "aw_tasks", ["owner", "created_at"])
    op.create_index("aw_tasks_tenant", "aw_tasks", ["tenant", "created_at"])


def _make_events() -> None:
    op.create_table(
        "aw_events",
        _id(),
        sa.Column("jid", sa.String(255), nullable=False, unique=True),
        sa.Column("task_id", sa.String(32), sa.ForeignKey("aw_tasks.id", ondelete="CASCADE")),
        sa.Column("worker", sa.String(255), nullable=False),
        sa.Column("queue", sa.String(255), nullable=False),
        sa.Column("shard", sa.String(64), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("state", sa.String(24), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("error_class", sa.String(255)),
        sa.Column("params", sa.Text()),
        sa.Column("whole", sa.Boolean(), nullable=False, server_default=sa.text("false")),
        sa.Column("items", sa.Integer(), nullable=False, server_default=sa.text("1")),
        sa.Column("runs", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("stands_for", sa.String(255)),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float()),
        sa.Column("ended_at", sa.Float()),
        sa.Column("changed_at", sa.Float(), nullable=False),
    )
    op.create_index("aw_events_task", "aw_events", ["task_id", "status", "id"])
    is_open = sa.text("status IN ('enqueue', 'working')")
    op.create_index("aw_events_open", "aw_events", ["shard", "changed_at"], postgresql_where=is_open)
    waits = sa.text("stands_for IS NOT NULL")
    op.create_index("aw_events_stands_for", "aw_events", ["stands_for"], postgresql_where=waits)


def _make_messages() -> None:
    op.create_table(
        "aw_messages",
        _id(),
        sa.Column("key", sa.String(80), nullable=False, unique=True),
        sa.Column("jid", sa.String(255), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text()),
    )
    op.create_index("aw_messages_jid", "aw_messages", ["jid", "id"])
