"""Keep the runs of each day, and the runs of each urgency by hour and day."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables. The leader of each shard fills the days from the hours."""
    op.create_table(
        "aw_history_days",
        sa.Column("day", sa.BigInteger(), primary_key=True),
        sa.Column("shard", sa.String(64), primary_key=True),
        sa.Column("runs", sa.Text(), nullable=False),
    )
    op.create_table(
        "aw_urgency_history",
        sa.Column("step_s", sa.Integer(), primary_key=True),
        sa.Column("start", sa.BigInteger(), primary_key=True),
        sa.Column("shard", sa.String(64), primary_key=True),
        sa.Column("runs", sa.BigInteger(), nullable=False, server_default=sa.text("0")),
        sa.Column("counts", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    """Remove the tables, with all days and urgencies."""
    op.drop_table("aw_urgency_history")
    op.drop_table("aw_history_days")
