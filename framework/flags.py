"""Switch code on and off at run time, for all calls or for a share of them, with feature flags in Redis.

    from framework import flags

    if flags.enabled("new_invoices", key=customer_id):      # the same answer for a customer, in every process
        ...

    flags.set("new_invoices", 20, reason="the first fifth", expires_in=timedelta(days=7))
    flags.clear("new_invoices")

``enabled`` answers from the memory of the process and costs no round trip. A process sees its own ``set`` and ``clear`` at once;
all other processes see them within five seconds. Each shard has a copy of the flags: a worker process asks its own shard, every
other process asks ``main``. While Redis does not answer, the last known flags count.

Operators use ``application-worker flags``. Flags that drop, defer or pause a class belong to ``application-worker jobs``.

Raises:
    ConfigurationError: each function raises it when its first use in the process finds an invalid configuration.
"""

import asyncio
from datetime import timedelta

from framework.async_twin import async_twin
from framework.declare import validators
from framework.declare.validators import InvalidValue
from framework.features.flags.flag import Flag, check_flag_name
from framework.features.flags.process_flags import PROCESS_FLAGS
from framework.process.identity import operator_name
from framework.typeguards import short_repr
from framework.wiring.client import process_client

__all__ = ["Flag", "aall", "aclear", "aenabled", "all", "aset", "clear", "enabled", "set"]


def enabled(name: str, key: str | int | None = None) -> bool:
    """Return whether a flag is on; a flag that is not set is off.

    A percentage decides at random for each call. With a ``key``, such as the id of a user, it always decides the same for that key,
    in every process. Sends nothing to Redis. The first call in a process without jobs waits for the flags, for two seconds at most.
    """
    return process_client.current().service(PROCESS_FLAGS).enabled(name, key)


async def aenabled(name: str, key: str | int | None = None) -> bool:
    """Return as ``enabled``, without blocking the event loop at the first call in a process."""
    flags = process_client.current().service(PROCESS_FLAGS)
    return flags.enabled(name, key) if flags.ready else await asyncio.to_thread(flags.enabled, name, key)


def set(  # noqa: A001 - the name of the public contract
    name: str, percentage: float = 100, expires_in: timedelta | float | None = None, reason: str = ""
) -> Flag:
    """Set a flag on every shard; it replaces a flag of the name. Return the flag with its times.

    ``percentage`` is the share of calls, or of keys, for which the flag is on. After ``expires_in``, a timedelta or seconds, by the
    clock of Redis, the flag counts as not set. ``reason`` is shown to operators.

    Raises:
        ValueError: a value is not allowed, or the name is that of a flag of a class.
        ShardUnavailableError: a shard does not answer or refuses. The flag is set on the other shards; set it again.
    """
    flag = Flag(check_flag_name(name), _check_percentage(percentage), _check_reason(reason), operator_name())
    return process_client.current().service(PROCESS_FLAGS).set(flag, _check_duration(expires_in))


aset = async_twin(set)


def clear(name: str) -> bool:
    """Clear a flag on every shard, so that it counts as not set; return whether it was set.

    Raises:
        ValueError: the name is not allowed, or is that of a flag of a class.
        ShardUnavailableError: as ``set``.
    """
    return process_client.current().service(PROCESS_FLAGS).clear(check_flag_name(name))


aclear = async_twin(clear)


def all() -> dict[str, Flag]:  # noqa: A001 - the name of the public contract
    """Read the flags that are set, by name: those of this worker process's shard, in other processes those of ``main``.

    Flags of classes, and malformed values, are left out.

    Raises:
        ShardUnavailableError: the shard does not answer or refuses.
    """
    return process_client.current().service(PROCESS_FLAGS).all()


aall = async_twin(all)


def _check_percentage(percentage: object) -> float:
    if isinstance(percentage, int | float) and not isinstance(percentage, bool) and 0 <= percentage <= 100:
        return float(percentage)
    raise ValueError(f"percentage = {short_repr(percentage)} is not allowed. Allowed: a number from 0 to 100")


def _check_duration(expires_in: object) -> float | None:
    if expires_in is None:
        return None
    try:
        duration: timedelta = validators.duration(expires_in)
    except InvalidValue as error:
        raise ValueError(f"expires_in = {short_repr(expires_in)} is not allowed. Allowed: {error}, or None") from None
    return duration.total_seconds()


def _check_reason(reason: object) -> str:
    if isinstance(reason, str) and reason.isprintable():
        return reason.strip()
    raise ValueError(f"reason = {short_repr(reason)} is not allowed. Allowed: a text of one line")
