"""What is done to the processes and to Redis in a round, and when."""

import random
import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.exceptions import RedisError

from chaos_parts.fleet import Fleet
from framework.store.embedded import EmbeddedServer

FREEZE_S = 22.0
"""Longer than the lease (15 s) and a sweep (5 s, give or take a fifth): others have taken over when it wakes."""


@dataclass
class Blow:
    """One blow: what, at whom (pid 0: Redis), from when until when on the monotonic clock."""

    kind: str
    pid: int
    at: float
    until: float = 0.0


class Round(ABC):
    """Strikes when ``strike`` is called, which is often; remembers every blow."""

    name: str
    long_jobs = 0
    """Jobs of ``long_ms`` among the short ones, that a deadline or a freeze can cut."""
    long_ms = 1_500.0
    timeout_s = 25.0

    def __init__(self, fleet: Fleet, server: EmbeddedServer, client: Redis, rng: random.Random) -> None:
        self.fleet = fleet
        self.server = server
        self.client = client
        self.rng = rng
        self.blows: list[Blow] = []
        self.next_at = 0.0

    @abstractmethod
    def strike(self, now: float) -> None:
        """Do what is due."""

    @abstractmethod
    def finish(self) -> None:
        """Heal everything."""

    def hit(self, kind: str, pid: int, number: int) -> Blow:
        """Send a signal and remember it."""
        blow = Blow(kind, pid, time.monotonic())
        self.fleet.send(pid, number)
        self.blows.append(blow)
        return blow


class Kills(Round):
    """One process killed with -9 every ``every`` seconds, whoever it hits."""

    name = "kill"

    def __init__(self, *args: Any, every: float) -> None:
        super().__init__(*args)
        self.every = every

    def strike(self, now: float) -> None:
        if now < self.next_at or not (living := self.fleet.living):
            return
        self.next_at = max(now, self.next_at + self.every)
        self.hit("kill", self.rng.choice(living), signal.SIGKILL)

    def finish(self) -> None:
        pass


class Freezes(Round):
    """Processes stand still for longer than their lease; in between others are killed, or end with a short deadline."""

    name = "freeze"
    long_jobs = 60
    timeout_s = 1.0
    every = 4.0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.frozen: list[Blow] = []

    def strike(self, now: float) -> None:
        for blow in [blow for blow in self.frozen if now >= blow.at + FREEZE_S]:
            self._thaw(blow)
        if now < self.next_at:
            return
        self.next_at = now + self.every
        asleep = {blow.pid for blow in self.frozen}
        awake = [pid for pid in self.fleet.living if pid not in asleep]
        if not awake:
            return
        victim = self.rng.choice(awake)
        kind = self.rng.choice(("freeze", "freeze", "kill", "term")) if len(awake) > 1 else "term"
        if kind == "freeze":
            blow = self.hit("freeze", victim, signal.SIGSTOP)
            blow.until = blow.at + FREEZE_S
            self.frozen.append(blow)
        else:
            self.hit(kind, victim, signal.SIGKILL if kind == "kill" else signal.SIGTERM)

    def finish(self) -> None:
        for blow in list(self.frozen):
            self._thaw(blow)

    def _thaw(self, blow: Blow) -> None:
        blow.until = time.monotonic()
        self.frozen.remove(blow)
        self.fleet.send(blow.pid, signal.SIGCONT)


class RedisTrouble(Round):
    """Redis restarts, forgets scripts, drops connections, is full; a process is killed or ended now and then."""

    name = "redis"
    long_jobs = 60
    timeout_s = 1.0
    every = 2.0
    kinds = ("restart", "restart, always", "kill -9", "script flush", "client kill", "full", "kill", "term")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.full: Blow | None = None
        self.plan: list[str] = []

    def strike(self, now: float) -> None:
        if self.full is not None and now >= self.full.at + 1.0:
            self._relieve()
        if now < self.next_at or self.full is not None:
            return
        self.next_at = now + self.every
        if not self.plan:
            self.plan = self.rng.sample(self.kinds, len(self.kinds))  # each once, then all again
        kind = self.plan.pop()
        if kind in ("kill", "term"):
            if living := self.fleet.living:
                self.hit(kind, self.rng.choice(living), signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            return
        blow = Blow(kind, 0, time.monotonic())
        self.blows.append(blow)
        self._trouble(kind, blow)
        blow.until = time.monotonic()

    def _trouble(self, kind: str, blow: Blow) -> None:
        if kind == "script flush":
            self.client.script_flush()
        elif kind == "client kill":
            self.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        elif kind == "full":
            self.client.config_set("maxmemory", 1)
            self.full = blow
        else:
            # What was answered has been handed to the kernel before, so not even a kill may lose it.
            self.client.config_set("appendfsync", "always" if "always" in kind else "everysec")
            (self.server.kill if kind == "kill -9" else self.server.stop)()
            time.sleep(self.rng.uniform(0.2, 2.0))
            self.server.start()

    def finish(self) -> None:
        self._relieve()

    def _relieve(self) -> None:
        if self.full is None:
            return
        self.full.until = time.monotonic()
        self.full = None
        with suppress(RedisError):
            self.client.config_set("maxmemory", 0)
