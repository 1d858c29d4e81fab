"""Read the flags of operators, for the data API."""

from framework.admin.access import Answers, ask
from framework.async_twin import async_twin
from framework.features.flags.flag import Flag
from framework.features.flags.redis_flags import read_flags


def flags(shard: str | None = None) -> Answers[dict[str, Flag]]:
    """Return the flags that operators have set, by name; those that have expired too.

    Raises:
        ShardUnavailableError: no shard answers.
    """
    return ask(shard, lambda one: read_flags(one.client))


aflags = async_twin(flags)
