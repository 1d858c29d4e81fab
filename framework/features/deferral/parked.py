"""Let the jobs that a flag defers wait without cost, and bring them back when it defers them no more.

A job that is deferred passes through Redis each time it is due: moved to its queue, fetched, deferred. While the flag of its class
lets none run, the poller postpones a due job where it is, by about an hour. Once the flag lets jobs run, one process makes the
deferred jobs of the class due, at a rate.

At a crash: a postponed job is in the schedule set, and due within an hour and a half without anybody's help.
"""

import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import redis
from redis.exceptions import ResponseError

from framework.declare.declaration import Declaration
from framework.features.flags.flag import Flags, run_flag
from framework.fetch.deferred_blocks import blocks_of, move_times
from framework.process_clock import process_clock
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import server_time
from framework.store.script import write_when_full
from framework.store.steps import SHARE, BoundedSteps
from framework.telemetry import logs
from framework.text import decode_name, format_count
from framework.wire import keys
from framework.wire.job import BY_FLAG, DEFERRED, DEFERRED_BY
from framework.wire.json import loads_object

REASON: Final = BY_FLAG

PARKED_S = 3_600.0
"""How long a due job of a class that runs no jobs is postponed."""
_JITTER = 0.5

_PAGE = (20, 1_000)
_ROUND_S = 2.0
_CLAIM_MS = 30_000
_NEEDLE = b'"%s":' % DEFERRED.encode()


def parked_s() -> float:
    """Return for how long to postpone a job."""
    return PARKED_S * random.uniform(1 - _JITTER, 1 + _JITTER)


@dataclass(slots=True)
class _Release:
    """How far the release of a class is."""

    began: float
    """Epoch seconds of Redis."""
    read_to: float
    """The due time up to which the schedule set was read."""
    jobs: int = 0
    """The jobs made due."""


class ParkedJobs:
    """The classes of a shard whose jobs flags defer. ``note`` is safe from any thread; one thread calls ``release``."""

    def __init__(
        self, client: "redis.Redis", identity: str, flags: Flags, absent: AbsentKeys, release_rate: float
    ) -> None:
        self._client = client
        self._rate = release_rate
        self._identity = identity
        self._flags = flags
        self._absent = absent
        self._noted: set[str] = set()
        self._written: set[str] = set()
        self._releases: dict[str, _Release] = {}

    def stops(self, declaration: Declaration) -> bool:
        """Return whether a flag lets no job of a class run. Reads only memory."""
        return self.is_off(declaration.wire_name)

    def is_off(self, worker: str) -> bool:
        flag = self._flags.find(run_flag(worker))
        return flag is not None and flag.percentage <= 0

    def note(self, worker: str) -> None:
        """Note that jobs of a class are deferred by its flag."""
        self._noted.add(worker)

    def release(self) -> None:
        """Bring back the deferred jobs of classes whose flag lets jobs run, for two seconds at most. Raises redis errors."""
        new = {name for name in tuple(self._noted) if name not in self._written}
        if new:
            write_when_full(self._client, ("SADD", keys.DEFERRED_CLASSES, *sorted(new)))
            self._written |= new
            self._absent.note(keys.DEFERRED_CLASSES, found=True)
        if not self._absent.may_exist(keys.DEFERRED_CLASSES):
            return
        try:
            members = cast("set[bytes]", self._client.smembers(keys.DEFERRED_CLASSES))
        except ResponseError:
            # Another program's key: the jobs come back by themselves.
            return
        self._absent.note(keys.DEFERRED_CLASSES, found=bool(members))
        end = process_clock.monotonic() + _ROUND_S
        for name in sorted(filter(None, map(decode_name, members))):
            if self.is_off(name) or process_clock.monotonic() >= end:
                continue
            # Refused at maxmemory: the jobs wait for memory, or until they are due.
            with suppress(ResponseError):
                if self._claim(name):
                    self._release_class(name, end)

    def _claim(self, worker: str) -> bool:
        """Return whether this process releases the class; another one follows if it dies."""
        key = keys.deferred_release(worker)
        if worker in self._releases and self._client.pexpire(key, _CLAIM_MS):
            return True
        return bool(self._client.set(key, self._identity, nx=True, px=_CLAIM_MS))

    def _release_class(self, worker: str, end: float) -> None:
        now = server_time(self._client)
        # Those that are due within a second come by themselves.
        release = self._releases.setdefault(worker, _Release(now, now + 1.0))
        steps = BoundedSteps(*_PAGE, share=SHARE)
        while process_clock.monotonic() < end and not self.is_off(worker):
            size = steps.size
            with steps.step(size):
                found: Any = self._client.zrangebyscore(
                    keys.SCHEDULE, f"({release.read_to:.6f}", "+inf", 0, size, withscores=True
                )
            jobs = [data for data, _ in found if _NEEDLE in data and _is_deferred_job(data, worker)]
            if jobs:
                times = {data: release.began + (release.jobs + at) / self._rate for at, data in enumerate(jobs)}
                # XX: a job that has left is not added again. LT: a time is only replaced by an earlier one.
                with steps.step(len(jobs)):
                    self._client.zadd(keys.SCHEDULE, cast("Any", times), xx=True, lt=True)
                release.jobs += len(jobs)
            if len(found) < size:
                self._release_blocks(worker, release)
                self._end(worker, release.jobs)
                return
            release.read_to = found[-1][1]

    def _release_blocks(self, worker: str, release: _Release) -> None:
        """Let the blocks of the class be due behind the jobs of the schedule set. They stay packed until then."""
        times = dict[bytes, float]()
        for block in blocks_of(self._client, worker, REASON):
            times[block.name] = release.began + release.jobs / self._rate
            release.jobs += block.jobs
            if len(times) == _PAGE[1]:
                move_times(self._client, times, sooner=True)
                times = {}
        move_times(self._client, times, sooner=True)

    def _end(self, worker: str, jobs: int) -> None:
        del self._releases[worker]
        self._noted.discard(worker)
        self._written.discard(worker)
        self._client.srem(keys.DEFERRED_CLASSES, worker)
        self._client.delete(keys.deferred_release(worker))
        logs.logger(**{"class": worker}).info(
            f"the flag of {worker} lets jobs run again: {format_count(jobs, 'deferred job')} {'becomes' if jobs == 1 else 'become'} "
            f"due, {self._rate:,.0f} per second",
            event_name="flags.released",
            jobs=jobs,
        )


def _is_deferred_job(data: bytes, worker: str) -> bool:
    payload = loads_object(data)
    return payload.get("class") == worker and payload.get(DEFERRED) is True and payload.get(DEFERRED_BY) == REASON
