"""Define the record of backlog."""

from framework.feature import Feature, Hold, Late, LateCommand, Rights

BACKLOG = Feature(
    name="backlog",
    rights={
        "read-only": Rights(commands=("hkeys", "hstrlen", "info", "memory|usage", "randomkey")),
    },
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
    job_commands=(
        LateCommand(
            "memory",
            "Show how much of the memory of a shard each class fills in each place.",
            Late("framework.features.backlog.commands:memory"),
        ),
    ),
)
