"""Define the record of moves between shards."""

from typing import Any

from framework.feature import Feature, Late, LateCommand, Rights
from framework.features.moves import keys

_SCRIPTS = tuple(
    Late[Any](f"framework.features.moves.store:{name}")
    for name in ("TAKE", "TAKE_ASIDE", "TAKE_HELD", "MARK_LOCKS", "PAGE", "RECEIVE", "RESTORE", "MIGRATE", "UNPACK")
)

MOVES = Feature(
    name="moves",
    rights={
        "producer": Rights(keys=(keys.MOVES, keys.moved_page("*")), commands=("hvals",)),
        # The leader of the processes of a shard carries a move on.
        "worker": Rights(scripts=_SCRIPTS, commands=("hget", "hvals", "renamenx")),
        "operator": Rights(scripts=_SCRIPTS, commands=("hget", "hvals", "info")),
        "read-only": Rights(commands=("hget", "hvals")),
    },
    moves=Late("framework.features.moves.records:read_moves"),
    worker=Late("framework.features.moves.worker:worker_part"),
    places={"aw:moving:": "moving"},
    stored_jobs=Late("framework.features.moves.mover:stored_jobs"),
    commands=(
        LateCommand(
            "shards",
            "Move waiting jobs to another shard while producers and processes run.",
            Late("framework.features.moves.commands:shards"),
        ),
    ),
)
