"""Replace parts of the framework's modules: threads that move one at a time, a clock that is set, and clients with
faults.

Clients stop before each command and may lose it, or its reply. Redis and everything else is real.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import hiredis
import redis
from redis import utils as redis_utils
from redis.client import Pipeline
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.execute import execution, processor, threads
from framework.fetch import blocking, fetcher, leader, pipeline
from framework.process import heartbeat, launcher, record
from framework.process_clock import process_clock
from framework.recover import reaper, suspects
from framework.store import channel, script
from framework.store.channel import Channel
from tests.lua import SCRIPTS
from tests.proofs.machine.interleaving import SIMULATED, Fate, SimulatedThread, current, pause

_TICK_S = 0.001  # every step takes a moment: so rates can be measured, and no two events have the same time

_THREADED = (suspects, threads, pipeline, heartbeat, leader, processor)
_STARTING = (threads, heartbeat)
_TIMED = (suspects, execution, reaper, heartbeat, launcher, blocking, record)
_CLOCKED = ((pipeline, "clock"), (fetcher, "clock"), (leader, "clock"), (channel, "clock"))

_failing: WeakSet[Channel] = WeakSet()


class Clock:
    """The monotonic clock of every process: it advances by a moment at each reading, and by each simulated period."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def monotonic(self) -> float:
        """As ``time.monotonic``."""
        self.now += _TICK_S
        return self.now

    def sleep(self, _seconds: float) -> None:
        """Wait until resumed; the caller tries again then."""
        pause("wait")

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextmanager
def simulated(clock: Clock) -> Iterator[None]:
    """Simulate processes within the block."""
    with ExitStack() as stack:
        for module in _THREADED:
            stack.enter_context(patch.object(module, "threading", SIMULATED))
        for module in _STARTING:
            stack.enter_context(patch.object(module, "SupervisedThread", SimulatedThread))
        for module in _TIMED:
            stack.enter_context(patch.object(module, "time", clock))
        for module, name in _CLOCKED:
            stack.enter_context(patch.object(module, name, clock.monotonic))
        stack.enter_context(process_clock.override(monotonic=clock.monotonic))
        for owner, name in ((redis.Redis, "execute_command"), (Pipeline, "execute")):
            stack.enter_context(patch.object(owner, name, _stopping(getattr(owner, name), clock)))
        # Redis-py reads it from the file system for each connection, which costs more than the connection.
        stack.enter_context(patch.object(redis_utils, "get_lib_version", lambda: redis.__version__))
        stack.enter_context(patch.object(Channel, "send_packet", _sending(Channel.send_packet)))
        stack.enter_context(patch.object(Channel, "replies", _reading(Channel.replies)))
        yield


def _ask(what: str) -> Fate:
    act = current()
    if act is None:
        return "go"
    act.stop("command", what)
    if act.fate == "reset":
        raise RedisConnectionError(f"{what}: the connection was reset")
    return act.fate


def _stopping(run: Callable[..., Any], clock: Clock) -> Callable[..., Any]:
    def stop_and_run(self: Any, *args: Any, **options: Any) -> Any:
        name = _named(args) if args else "pipeline"
        fate = _ask(name)
        args = _by_the_clock(args, clock)
        if fate == "go":
            return run(self, *args, **options)
        with suppress(redis.RedisError):  # no caller gets the reply
            run(self, *args, **options)
        raise RedisConnectionError("the reply was lost")

    return stop_and_run


def _by_the_clock(args: tuple[Any, ...], clock: Clock) -> tuple[Any, ...]:
    """Move a deadline in a command nearer: Redis's clock does not advance with simulated time."""
    act = current()
    if act is not None and args == ("TIME",):
        act.read_clock_at = clock.now
    if act is None or len(args) < 2 or args[1] not in (script.RECEIVE_TRANSFER.digest, script.RECEIVE_TRANSFER.source):
        return args
    deadline = 3 + int(args[2]) + 2
    until = float(args[deadline]) - (clock.now - act.read_clock_at)
    return (*args[:deadline], f"{until:.6f}", *args[deadline + 1 :])


def _sending(send: Callable[[Channel, bytes], None]) -> Callable[[Channel, bytes], None]:
    def sending(self: Channel, packet: bytes) -> None:
        try:
            fate = _ask(_words(packet))
        except RedisConnectionError:
            self.close()
            self.sent = False
            raise
        send(self, packet)
        if fate == "lost":
            _failing.add(self)

    return sending


def _reading(read: Callable[[Channel, int], list[Any]]) -> Callable[[Channel, int], list[Any]]:
    def reading(self: Channel, count: int) -> list[Any]:
        found = read(self, count)
        if self not in _failing:
            return found
        _failing.discard(self)
        self.close()
        raise RedisConnectionError("the reply was lost")

    return reading


_SCRIPTS = {one.digest: name for name, one in SCRIPTS.items()}


def _named(args: tuple[Any, ...]) -> str:
    """Return the name of the command, or of the script."""
    if args[0] == "EVALSHA":
        return _SCRIPTS[str(args[1])]
    return "a script, whole" if args[0] == "EVAL" else str(args[0])


def _words(packet: bytes) -> str:
    """Return the first words of a packet, for the trace."""
    reader = hiredis.Reader()
    reader.feed(packet)
    command = reader.gets()
    return _named(tuple(word.decode(errors="replace") for word in command[:2])) if command else "?"
