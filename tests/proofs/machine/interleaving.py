"""Move threads one at a time: each runs until its next command to Redis, its next wait, or the middle of its job.

The framework's modules get ``SIMULATED`` in place of ``threading``; a thread that waits there stops instead, until the
test resumes it. Between two stops a thread runs alone, so the result depends only on the order of resumes.
"""

import threading
from collections.abc import Callable
from typing import Any, Literal

Stop = Literal["begin", "command", "wait", "lock", "perform", "ended"]
Fate = Literal["go", "reset", "lost"]
"""The fate of a command: it arrives and so does its reply, it does not arrive, or it runs and its reply is lost."""

_MOST_TRIES = 2
"""The number of resumes that count as the time-out of a wait for a lock."""

_local = threading.local()


class Killed(BaseException):
    """The process of this thread has died."""


# One runnable thread at a time, so that a failing order of steps is reproduced exactly. A model of Redis would need a proof of its
# own; a scheduler of byte codes takes a hundred times as many steps, most of them equal under the interpreter lock.
class Act:
    """One thread. ``resume`` lets it move until it stops again."""

    def __init__(self, name: str, target: Callable[[], Any], owner: "Owner") -> None:
        self.name = name
        self.owner = owner
        self.at: Stop = "begin"
        self.about: Any = None
        """The next command, or the lock that it waits for."""
        self.fate: Fate = "go"
        self.paused: frozenset[str] = frozenset()
        """The queues that its process knew to be paused at this stop."""
        self.end = ""
        """The end of the job that it runs."""
        self.read_clock_at = 0.0
        """The simulated time at which it last asked Redis for the time."""
        self.doomed = False
        """True if its process has died: its next command is already sent and is the last one."""
        self.error: BaseException | None = None
        self._killed = False
        self._target = target
        self._go, self._stopped = _shut(), _shut()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def movable(self) -> bool:
        """Return whether it would continue by itself: it waits for no event and no other thread."""
        return self.at in ("begin", "command") or (self.at == "lock" and not self.about.locked())

    def resume(self, fate: Fate = "go") -> None:
        """Let it move until its next stop, and return then."""
        if self.at == "ended":
            return
        self.fate = fate
        if self.at == "begin":
            self._thread.start()
        else:
            self._go.release()
        self._stopped.acquire()

    def kill(self) -> None:
        """End it, whatever it was about to do."""
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
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.error = error
        self.at = "ended"
        self._stopped.release()


class Owner:
    """A process, whose threads are ``acts``."""

    paused: frozenset[str] = frozenset()
    """The queues that it knows to be paused."""

    def __init__(self) -> None:
        self.acts: list[Act] = []

    def __str__(self) -> str:
        return "test"

    def begin(self, name: str, target: Callable[[], Any]) -> Act:
        """Start a thread, which stops before its first step."""
        act = Act(name, target, self)
        self.acts.append(act)
        return act


def current() -> Act | None:
    """Return the thread that moves; None for the test itself."""
    return getattr(_local, "act", None)


def mover() -> Act:
    """Return the thread that moves. The test itself must not wait here: no thread would end its wait."""
    act = current()
    if act is None:
        raise RuntimeError("the thread that steers must not wait")
    return act


def pause(at: Stop, about: Any = None) -> None:
    """Stop here until resumed."""
    mover().stop(at, about)


def _shut() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


# --- in place of the module threading -------------------------------------------------------------------------------


class _Lock:
    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - the library's signature
        tries = 0
        while self._held:
            if not blocking or (timeout >= 0 and tries == _MOST_TRIES):
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
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it."""
        self._set = True

    def clear(self) -> None:
        """Clear it."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - the library's signature
        """Stop, unless it is set."""
        if not self._set:
            pause("wait")
        return self._set


class _Condition:
    def __enter__(self) -> None:
        """Do nothing: one thread moves at a time."""

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002 - the library's signature
        pause("wait")
        return True

    def notify(self, n: int = 1) -> None:
        """Do nothing: a waiting thread checks its condition whenever it is resumed."""


class SimulatedThread:
    """Replaces ``SupervisedThread``."""

    def __init__(
        self,
        name: str,
        target: Callable[..., Any],
        *arguments: Any,
        on_death: Callable[[str, BaseException], None] | None = None,
        **_options: Any,
    ) -> None:
        self._name, self._target, self._arguments, self._on_death = name, target, arguments, on_death
        self._act: Act | None = None

    def start(self) -> None:
        """Begin the thread, which stops before its first step."""
        self._act = mover().owner.begin(self._name, self._run)

    def _run(self) -> None:
        try:
            self._target(*self._arguments)
        except Killed:
            raise
        except BaseException as error:
            if self._on_death is None:
                raise
            self._on_death(self._name, error)

    def is_alive(self) -> bool:
        """Return whether it has begun and not ended."""
        return self._act is not None and self._act.at != "ended"

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002 - the library's signature
        """Stop until it has ended."""
        if self.is_alive():
            pause("wait")


class SIMULATED:
    """Replaces the module ``threading``: the parts that the framework uses."""

    Lock, Event, Condition, local = _Lock, Event, _Condition, threading.local
    current_thread = staticmethod(current)
    get_ident = staticmethod(threading.get_ident)
    main_thread = staticmethod(threading.main_thread)
    enumerate = staticmethod(threading.enumerate)
