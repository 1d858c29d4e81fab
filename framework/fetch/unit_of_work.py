"""A job in custody: its bytes as fetched and the queue they came from."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class UnitOfWork:
    """One fetched job. ``data`` is never changed: the working list is searched for these very bytes."""

    queue: str
    data: bytes
