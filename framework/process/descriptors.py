"""Refuse to start with fewer file descriptors than a process needs, before the shortage shows as another error."""

import resource
from collections.abc import Mapping, Sequence

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.fetch.blocking import MAX_BLOCKED_QUEUES
from framework.text import format_count

_BASE_COUNT = 32
"""Descriptors for standard streams, signals, selectors, the event loop, the log, and files that imports and jobs open briefly."""

_MAX_COUNTED_SLOTS = 64
"""Slots beyond this number run async jobs, which share connections, or need a limit that only the operator knows."""


def check_worker(slots: int, queues: Sequence[int], shards: int) -> None:
    """Raise ConfigurationError when the limit of open files is too low for a worker; ``queues`` counts those of each capsule."""
    _check(
        {
            format_count(slots, "slot"): min(slots, _MAX_COUNTED_SLOTS),
            f"{format_count(sum(queues), 'queue')} (a blocked connection each, at most {MAX_BLOCKED_QUEUES})": sum(
                min(count, MAX_BLOCKED_QUEUES) for count in queues
            ),
            f"{format_count(shards, 'shard')} (four connections to its own, two to another)": 1
            + len(queues)
            + 2 * shards,
        }
    )


def check_supervisor(children: int, shards: int) -> None:
    """Raise ConfigurationError when the limit of open files is too low for a supervisor."""
    _check({format_count(children, "process"): 4 * children, format_count(shards, "shard"): 2 * shards})


def _check(parts: Mapping[str, int]) -> None:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _BASE_COUNT + sum(parts.values())
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return
    counts = ", ".join([f"{_BASE_COUNT} of its own", *(f"{count} for {what}" for what, count in parts.items())])
    hard = (
        "" if most == resource.RLIM_INFINITY or most >= needed else f"; the hard limit is {most}, which root can raise"
    )
    advice = "Set `ulimit -n 1024` or more in the shell, LimitNOFILE= in the systemd unit, or --ulimit nofile= of the container"
    message = f"the limit is {limit}, and this process needs at least {needed} ({counts}). {advice}{hard}"
    raise ConfigurationError([ConfigurationProblem("this process", "open files (ulimit -n)", message)])
