"""Correct the counts of accepted jobs, which are wrong after another program has deleted or revived counted jobs.

The jobs of the classes in question are read, in pages, while processes move them: a job may be seen twice, or missed. So a difference
is corrected only if two checks have found it, by the smaller of the two, and a small one only while nothing changed meanwhile.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import redis

from framework.features.backlog.memory import read_jobs
from framework.settings.model import SizeLimitSettings
from framework.telemetry import logs
from framework.wire import keys
from framework.wire.accepted import ACCEPTED
from framework.wire.json import loads_object

_DEAD = frozenset({"dead", "interrupted"})
_LARGE = 0.1
"""The share of a count above which a difference is none of jobs that moved during the check."""


class Count(NamedTuple):
    """Jobs of a class, and their bytes."""

    jobs: int = 0
    bytes: int = 0

    def less(self, other: "Count") -> "Count":
        return Count(self.jobs - other.jobs, self.bytes - other.bytes)


class CountRepair:
    """Correct the counts of the classes of one shard. ``check`` is called by one thread."""

    def __init__(self, client: "redis.Redis", shard: str, sizes: SizeLimitSettings, limits: Mapping[str, int]) -> None:
        """``limits`` has the most jobs of each class, 0 where only their bytes are limited."""
        self._client = client
        self._shard = shard
        self._sizes = sizes
        self._limits = limits
        self._found: dict[str, tuple[Count, bool]] = {}
        """Of each class by how much its count was too high at the last check, and whether nothing changed meanwhile."""

    def check(self) -> None:
        """Compare the counts with the jobs, and correct them. A class far below its limit is left alone. Raises redis errors."""
        before = self._counts()
        # A wrong count matters near the limit, and reading all jobs of a shard takes time.
        names = {name for name, one in before.items() if one.jobs * 2 >= self._limits[name]}
        if not names:
            self._found = {}
            return
        present = self._present(names)
        after, found = self._counts(), dict[str, tuple[Count, bool]]()
        for name in names:
            excess = after.get(name, Count()).less(present.get(name, Count()))
            steady = before.get(name) == after.get(name)
            found[name] = excess, steady
            last = self._found.get(name)
            if last is not None:
                self._correct(name, last, found[name], after.get(name, Count()).jobs)
        self._found = found

    def _counts(self) -> dict[str, Count]:
        names = sorted(self._limits)
        if not names:
            return {}
        pipeline: Any = self._client.pipeline()
        pipeline.hmget(keys.ACCEPTED_JOBS, names)
        pipeline.hmget(keys.ACCEPTED_BYTES, names)
        jobs, sizes = pipeline.execute()
        return {name: Count(int(n), int(size or 0)) for name, n, size in zip(names, jobs, sizes, strict=True) if n}

    def _present(self, names: set[str]) -> dict[str, Count]:
        """Return the counted jobs of these classes that are on the shard and have not died, each once."""
        likely = [name.encode() for name in names]
        seen: dict[str, dict[str, int]] = defaultdict(dict)
        for kind, data in read_jobs(self._client, self._sizes):
            if kind in _DEAD or ACCEPTED.encode() not in data or not any(name in data for name in likely):
                continue
            payload = loads_object(data)
            name, size = payload.get("class"), payload.get(ACCEPTED)
            if name in names and type(size) is int:
                seen[cast("str", name)][str(payload.get("jid"))] = size
        return {name: Count(len(jobs), sum(jobs.values())) for name, jobs in seen.items()}

    def _correct(self, name: str, last: tuple[Count, bool], now: tuple[Count, bool], jobs: int) -> None:
        (first, was_steady), (second, is_steady) = last, now
        if first.jobs * second.jobs <= 0:
            return
        excess = min(first, second, key=lambda one: abs(one.jobs))
        if not (was_steady and is_steady and first == second) and abs(excess.jobs) <= jobs * _LARGE:
            return
        pipeline: Any = self._client.pipeline()
        pipeline.hincrby(keys.ACCEPTED_JOBS, name, -excess.jobs)
        pipeline.hincrby(keys.ACCEPTED_BYTES, name, -excess.bytes)
        pipeline.execute()
        logs.logger(shard=self._shard, jobs=excess.jobs, **{"class": name}).warning(
            f"the count of accepted jobs of {name} was too {'high' if excess.jobs > 0 else 'low'} and is corrected: another program "
            "has deleted, or revived, some of its jobs. Do so with the commands of this framework",
            event_name="backlog.corrected",
        )
