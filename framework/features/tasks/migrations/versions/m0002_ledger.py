"""Keep the payloads of waiting jobs for the ledger, and find old tasks and events for their removal."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEXES = (
    ("aw_tasks_completed", "aw_tasks", ["completed_at"], None),
    ("aw_events_deleted", "aw_events", ["shard", "changed_at"], "state = 'deleted'"),
    ("aw_events_single", "aw_events", ["ended_at"], "task_id IS NULL AND ended_at IS NOT NULL"),
)


def upgrade() -> None:
    """Add the columns and the indexes. The tables are not rewritten; making the indexes blocks writes meanwhile."""
    op.add_column("aw_events", sa.Column("payload", sa.Text()))
    op.add_column("aw_events", sa.Column("due_at", sa.Float()))
    for name, table, columns, condition in _INDEXES:
        where = None if condition is None else sa.text(condition)
        op.create_index(name, table, columns, postgresql_where=where, sqlite_where=where)


def downgrade() -> None:
    """Remove them, with the payloads."""
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
    for column in ("due_at", "payload"):
        op.drop_column("aw_events", column)
