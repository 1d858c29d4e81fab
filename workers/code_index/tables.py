"""The rows of the code index: a run, the files it found, and what was measured of each."""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

metadata: Final = MetaData()

# files_total is null until the list of files is recorded, whole.
runs: Final = Table(
    "code_index_runs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("roots", JSON, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("files_total", Integer),
    Column("finished_at", Double),
    Column("report", Text),
)

# `path` is bytes, as file names are; `shown` is its printable name below its root.
files: Final = Table(
    "code_index_files",
    metadata,
    Column("run_id", String(64), ForeignKey("code_index_runs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("path", LargeBinary, nullable=False),
    Column("shown", Text, nullable=False),
    Column("package", Text, nullable=False),
    Column("pending", Boolean, nullable=False),
    # "Is any file left?" is asked after every job: the index holds only the files without a result.
    Index(
        "code_index_files_pending",
        "run_id",
        "number",
        sqlite_where=text("pending"),
        postgresql_where=text("pending"),
    ),
)

# Numbers, or the kind and reason of a refusal.
results: Final = Table(
    "code_index_results",
    metadata,
    Column("run_id", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("size", BigInteger),
    Column("lines", Integer),
    Column("functions", Integer),
    Column("classes", Integer),
    Column("longest_name", Text),
    Column("longest_lines", Integer),
    Column("kind", String(20)),
    Column("reason", Text),
    Column("cpu_s", Double, nullable=False),
    Column("duration_s", Double, nullable=False),
    Column("indexed_at", Double, nullable=False),
    ForeignKeyConstraint(
        ["run_id", "number"], ["code_index_files.run_id", "code_index_files.number"], ondelete="CASCADE"
    ),
    Index("code_index_results_kind", "run_id", "kind"),
)
