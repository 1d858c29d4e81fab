"""Keep the runs of each hour."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table and its index."""
    op.create_table(
        "aw_history",
        sa.Column("hour", sa.BigInteger(), primary_key=True),
        sa.Column("shard", sa.String(64), primary_key=True),
        sa.Column("worker", sa.String(255), primary_key=True),
        *(
            sa.Column(name, sa.BigInteger(), nullable=False, server_default=sa.text("0"))
            for name in ("processed", "failed")
        ),
        sa.Column("seconds", sa.Float(), nullable=False, server_default=sa.text("0")),
        sa.Column("durations", sa.Text()),
    )
    op.create_index("aw_history_worker", "aw_history", ["worker", "hour"])


def downgrade() -> None:
    """Remove the table, with all hours."""
    op.drop_table("aw_history")
