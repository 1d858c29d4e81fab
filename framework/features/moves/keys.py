"""Name the keys of moves between shards."""

MOVES = "aw:moves"
"""HASH from the id of a move to the move as JSON: what moves, from where, to where, its epoch and its state. Every shard has it."""

MOVING = "aw:moving"
"""SET of ``ID PLACE``: the moves and the places from which jobs have left this shard."""

MOVING_PAGES = "aw:moving_pages"
"""HASH from ``ID PLACE`` to the page of its jobs that is in flight: a token and a number of jobs."""

MOVED_COUNTS = "aw:moved"
"""HASH from the id of a move to the number of jobs that have left this shard by it."""


def moving(move: str, place: str) -> str:
    """LIST of the jobs that leave a queue or a sorted set, the oldest at its right end."""
    return f"aw:moving:{move}:{place}"


def moved_page(token: str) -> str:
    """STRING with a TTL: this shard has written the page of jobs with this token."""
    return f"aw:moved:{token}"
