"""Read the flags in force for ``jobs explain``: once for all features that ask."""

from collections.abc import Callable, Mapping

from framework.admin.explain_reader import ShardSnapshot
from framework.feature import Late
from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import read_flags


def flags_in_force(snapshot: ShardSnapshot) -> Mapping[str, Flag]:
    """Return the operators' flags in force on a shard, by name. What is assumed counts instead of it."""
    return snapshot.fact(_IN_FORCE)


def read_for_explain(snapshot: ShardSnapshot) -> Mapping[str, Flag]:
    """See ``flags_in_force``. Raises redis errors."""
    read = read_flags(snapshot.client)
    found = {name: one for name, one in read.items() if one.expires_at is None or one.expires_at > snapshot.now}
    return {**found, **snapshot.assumed.get("flags", {})}


_IN_FORCE: "Late[Callable[[ShardSnapshot], Mapping[str, Flag]]]" = Late(
    "framework.features.flags.explain:read_for_explain"
)
