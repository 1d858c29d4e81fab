"""Enumerate the members of a Redis set, or the fields of a hash, with SSCAN and HSCAN.

The cursor names the server and a page: an interrupted page runs again. A scan of another server, also of the same one after its
restart, would skip members, so it begins again. A member that is there all the time comes at least once; others may or may not.
"""

from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from framework.enumerators.enumerator import Enumerator
from framework.typeguards import short_repr
from framework.wire.iteration_state import CursorError

if TYPE_CHECKING:
    import redis

T = TypeVar("T")


def redis_set(client: "redis.Redis", key: str, *, cursor: Any, page_size: int = 100) -> Enumerator[Any]:
    """Return the members of a set, as ``client`` decodes them. Raises redis errors."""
    connection: Any = client

    def page(at: int) -> tuple[int, Iterable[Any]]:
        found: tuple[int, Iterable[Any]] = connection.sscan(key, at, count=page_size)
        return found

    return Enumerator(_scan(client, page, _checked(cursor, "redis_set")), connection.scard(key))


def redis_hash(client: "redis.Redis", key: str, *, cursor: Any, page_size: int = 100) -> Enumerator[tuple[Any, Any]]:
    """Return the pairs (field, value) of a hash, as ``client`` decodes them. Raises redis errors."""
    connection: Any = client

    def page(at: int) -> tuple[int, Iterable[tuple[Any, Any]]]:
        following, found = connection.hscan(key, at, count=page_size)
        return following, found.items()

    return Enumerator(_scan(client, page, _checked(cursor, "redis_hash")), connection.hlen(key))


def _checked(cursor: Any, name: str) -> tuple[str, int]:
    if cursor is None:
        return "", 0
    parts = cast("list[Any]", cursor) if isinstance(cursor, list) else []
    if [type(part) for part in parts] != [str, int]:
        raise CursorError(f"is none of {name}(): {short_repr(cast('object', cursor))}")
    server, at = parts
    return server, at


def _scan(
    client: "redis.Redis", page: Callable[[int], tuple[int, Iterable[T]]], start: tuple[str, int]
) -> Generator[tuple[T, list[Any]]]:
    connection: Any = client
    server = str(connection.info("server")["run_id"])
    at = start[1] if start[0] == server else 0
    while True:
        following, found = page(at)
        for member in found:
            yield member, [server, at]
        if not following:
            return
        at = int(following)
