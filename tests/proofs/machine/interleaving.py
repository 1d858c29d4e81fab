"""Threads that move one at a time: each runs until its next command to Redis, its next wait, or the middle of its job.

The framework's modules are given ``SIMULATED`` in place of ``threading``; what waits there stops instead, and goes on when
whoever steers resumes it. Between two stops a thread runs alone, so what happens depends on the order of resumes only.
"""

import threading
from collections.abc import Callable
from typing import Any, Literal

Stop = Literal["begin", "command", "wait", "lock", "perform", "ended"]
Fate = Literal["go", "reset", "lost"]
"""What becomes of a command: it arrives and so does its reply, it does not arrive, or it is carried out unanswered."""

_PATIENCE = 2
"""So many resumes are taken for the end of a time-out by whoever waits for a lock."""

_local = threading.local()


class Killed(BaseException):
    """The process of this thread has died."""


# Decision 64: interleavings are tested with one runnable thread at a time.
class Act:
    """One thread. ``resume`` lets it move until it stops again."""

    def __init__(self, name: str, target: Callable[[], Any], owner: "Owner") -> None:
        self.name = name
        self.owner = owner
        self.at: Stop = "begin"
        self.about: Any = None
        """What it stands before: the command, or the lock."""
        self.fate: Fate = "go"
        self.paused: frozenset[str] = frozenset()
        """The queues that its process knew to be paused when it came to where it stands."""
        self.end = ""
        """How the job ends that it runs."""
        self.read_clock_at = 0.0
        """When (of the simulated clock) it last asked Redis for the time."""
        self.doomed = False
        """Whether its process has died: the command it stands before is under way, and is the last."""
        self.error: BaseException | None = None
        self._killed = False
        self._target = target
        self._go, self._stopped = _shut(), _shut()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def movable(self) -> bool:
        """Whether it would get on by itself: it waits for no event and for nobody."""
        return self.at in ("begin", "command") or (self.at == "lock" and not self.about.locked())

    def resume(self, fate: Fate = "go") -> None:
        """Let it move until its next stop, and return when it is there."""
        if self.at == "ended":
            return
        self.fate = fate
        if self.at == "begin":
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        """It does nothing any more, whatever it was about to do."""
        self._killed = True
        if self.at == "begin":
            self.at = "ended"
        while self.at != "ended":
            self.resume()

    def stop(self, at: Stop, about: Any = None) -> None:
        """Stop here until resumed; called by the thread itself. Raises Killed when its process has died meanwhile."""
        if self._killed:
            raise Killed
        self.at, self.about, self.paused = at, about, self.owner.paused
        self._stopped.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        _local.act = self
        try:
            if not self._killed:
                self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - shown by whoever steers
            self.error = error
        self.at = "ended"
        self._stopped.release()


class Owner:
    """A process: whose threads are ``acts``."""

    paused: frozenset[str] = frozenset()
    """Queues that it knows to be paused."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def __str__(self) -> str:
        return "somebody"

    def begin(self, name: str, target: Callable[[], Any]) -> Act:
        """A new thread, which stands before its first step."""
        act = Act(name, target, self)
        self.acts.append(act)
        return act


def current() -> Act | None:
    """The thread that moves; None for whoever steers."""
    return getattr(_local, "act", None)


def mover() -> Act:
    """The thread that moves. Whoever steers has no business here: nobody would end its wait."""
    act = current()
    if act is None:
        raise RuntimeError("who steers must not wait")
    return act


def pause(at: Stop, about: Any = None) -> None:
    """Stop here until resumed."""
    mover().stop(at, about)


def _shut() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


# --- what stands in place of the module threading -------------------------------------------------------------------


class _Lock:
    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - the library's signature
        tries = 0
        while self._held:
            if not blocking or (timeout >= 0 and tries == _PATIENCE):
                return False
            pause("lock", self)
            tries += 1
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("released, and not held")
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """``threading.Event``; a time-out ends when the thread is resumed."""

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._set

    def set(self) -> None:
        """It has happened."""
        self._set = True

    def clear(self) -> None:
        """It has not."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - the library's signature
        """Stop, unless it has happened."""
        if not self._set:
            pause("wait")
        return self._set


class _Condition:
    def __enter__(self) -> None:
        """One thread moves at a time: nothing to lock."""

    def __exit__(self, *_: object) -> None:
        """Nothing to unlock."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - the library's signature
        pause("wait")
        return True

    def notify(self, n: int = 1) -> None:
        """Who waits looks again whenever it is resumed."""


class _Thread:
    def __init__(self, *, target: Callable[[], Any], name: str, daemon: bool) -> None:  # noqa: ARG002 - as above
        self._target, self._name = target, name
        self._act: Act | None = None

    def start(self) -> None:
        self._act = mover().owner.begin(self._name, self._target)

    def is_alive(self) -> bool:
        return self._act is not None and self._act.at != "ended"

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002 - as above
        if self.is_alive():
            pause("wait")


class SIMULATED:
    """In place of the module ``threading``, of which the framework uses these."""

    Lock, Event, Condition, Thread, local = _Lock, Event, _Condition, _Thread, threading.local
    current_thread = staticmethod(current)
    get_ident = staticmethod(threading.get_ident)
    main_thread = staticmethod(threading.main_thread)
    enumerate = staticmethod(threading.enumerate)
