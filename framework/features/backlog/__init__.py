"""Define the record of backlog."""

from typing import Any

from framework.feature import Feature, Figures, Hold, Late, LateCommand, Rights
from framework.wire import keys

_SCRIPTS: tuple[Late[Any], ...] = tuple(
    Late(f"framework.features.backlog.store:{name}") for name in ("WATCH", "SET_ASIDE", "RETURN_ASIDE", "READ_WAITING")
)

BACKLOG = Feature(
    name="backlog",
    rights={
        "producer": Rights(keys=(keys.MEMORY,), commands=("get", "hincrby")),
        "worker": Rights(scripts=_SCRIPTS),
        "read-only": Rights(commands=("hkeys", "hstrlen", "info", "memory|usage", "randomkey")),
    },
    worker=Late("framework.features.backlog.worker:worker_part"),
    push=Late("framework.features.backlog.push:limit_pushes"),
    holds=(
        # The name of ACCEPTED in wire/accepted.py, which needs more than the help of the commands, which reads this record.
        Hold(
            name="accepted",
            field="aw_accepted",
            part="backlog/accepted",
            waiter=Late("framework.features.backlog.payload:WAITER"),
            stays=False,
        ),
    ),
    figures=Figures(reader=Late("framework.features.backlog.figures:BacklogFigures"), part="backlog/figures"),
    explain=Late("framework.features.backlog.explain:BacklogReader"),
    causes=Late("framework.features.backlog.causes:BudgetCauses"),
    pages=(Late("framework.features.backlog.page:MemoryPage"),),
    job_commands=(
        LateCommand(
            "memory",
            "Show how much of the memory of a shard each class fills in each place.",
            Late("framework.features.backlog.commands:memory"),
        ),
    ),
)
