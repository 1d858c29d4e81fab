"""The process record that Sidekiq's Web UI and API read, all versions from 6.4 on."""

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.execute.runs import Runs, Tally
from framework.fetch.queues import QueueOrder
from framework.wire import keys

TTL_S = 60
_DAY_TTL_S = 5 * 365 * 86_400
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class ProcessRecord:
    """Writes what this process is and does; one pipeline per beat."""

    client: "redis.Redis"
    identity: str
    order: QueueOrder
    slots: int
    version: str
    runs: Runs
    started_at: float = field(default_factory=time.time)
    quiet: bool = False
    rtt_us: int = 0
    _written: Tally = field(default_factory=Tally)

    def beat(self) -> list[str]:
        """Write the record and the statistics; return the signals that were asked for through Redis. Raises redis errors."""
        asked = time.perf_counter()
        self.client.ping()  # pyright: ignore[reportUnknownMemberType]
        self.rtt_us = int((time.perf_counter() - asked) * 1_000_000)
        totals = self.runs.totals()
        # Not a transaction: at maxmemory a MULTI is refused whole, and nothing here may pull anything else down with it.
        pipeline: Any = self.client.pipeline(transaction=False)
        self._add_statistics(pipeline, totals)
        self._add_work(pipeline)
        pipeline.sadd(keys.PROCESSES, self.identity)
        pipeline.hset(self.identity, mapping=self._fields())
        pipeline.expire(self.identity, TTL_S)
        pipeline.rpop(keys.signals(self.identity))
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        refusal = next((reply for reply in replies if isinstance(reply, RedisError)), None)
        signal = replies[-1]
        if refusal is None:
            self._written = totals
        elif not isinstance(signal, bytes):  # a signal has left Redis: obeyed now, the refusal is told by the next beat
            raise refusal
        return [signal.decode()] if isinstance(signal, bytes) else []

    def remove(self) -> None:
        """Write the last statistics and strike the process off the list. Raises redis errors."""
        totals = self.runs.totals()
        pipeline: Any = self.client.pipeline(transaction=False)
        self._add_statistics(pipeline, totals)
        pipeline.srem(keys.PROCESSES, self.identity)
        pipeline.delete(*keys.work(self.identity), self.identity, keys.signals(self.identity))
        pipeline.execute()
        self._written = totals

    def _add_statistics(self, pipeline: Any, totals: Tally) -> None:
        day = time.strftime("%Y-%m-%d", time.gmtime())
        for key, count in (
            (keys.STAT_PROCESSED, totals.processed - self._written.processed),
            (keys.STAT_FAILED, totals.failed - self._written.failed),
        ):
            if count:
                pipeline.incrby(key, count)
                pipeline.incrby(f"{key}:{day}", count)
                pipeline.expire(f"{key}:{day}", _DAY_TTL_S)

    def _add_work(self, pipeline: Any) -> None:
        running = {
            _base36(thread): json.dumps(
                {"queue": unit.queue, "payload": unit.data.decode("utf-8", "replace"), "run_at": started}
            )
            for thread, (unit, started) in self.runs.running().items()
        }
        for key in keys.work(self.identity):
            pipeline.unlink(key)
            if running:
                pipeline.hset(key, mapping=running)
                pipeline.expire(key, TTL_S)

    def _fields(self) -> Mapping[str, Any]:
        return {
            "info": json.dumps(self._info()),
            "concurrency": self.slots,
            "busy": len(self.runs.running()),
            "beat": time.time(),
            "rtt_us": self.rtt_us,
            "quiet": "true" if self.quiet else "false",
            "rss": resident_kb(),
        }

    def _info(self) -> dict[str, Any]:
        """A superset of what every version reads (`concurrency` and `queues` moved between them)."""
        weights = dict(self.order.weights)
        return {
            "hostname": self.identity.rsplit(":", 2)[0] or socket.gethostname(),
            "started_at": self.started_at,
            "pid": os.getpid(),
            "tag": "",
            "concurrency": self.slots,
            "queues": self.order.names,
            "weights": [weights],
            "labels": ["python"],
            "identity": self.identity,
            "version": self.version,
            "embedded": False,
            "capsules": {"default": {"concurrency": self.slots, "mode": self.order.mode, "weights": weights}},
        }


def resident_kb() -> int:
    """Return this process's resident memory in kB, 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES // 1024
    except (OSError, ValueError, IndexError):
        return 0


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return text or "0"
