"""The port through which worker classes push. ``wiring`` binds the real client to it; importing it opens no connection."""

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from framework.errors import PushError

# `import framework` loads this module. pydantic, which these modules import, is loaded with the first worker class.
if TYPE_CHECKING:
    from framework.declare.declaration import Declaration
    from framework.declare.request import BulkRequest, PushRequest, Route
    from framework.feature import Late
    from framework.types import Jid, JobState

T = TypeVar("T")
S = TypeVar("S")


class ClientPort(Protocol):
    """The interface of the client, or of a fake in tests. Requests arrive bound; the client checks them."""

    def push(self, request: "PushRequest") -> "Jid | None":
        """Write one job; return its id, or None when a client middleware dropped it."""
        ...

    def push_bulk(self, request: "BulkRequest") -> "list[Jid | None]":
        """Write many jobs; return the ids in the order of the arguments."""
        ...

    def push_up_to(self, request: "PushRequest", limit: int, max_new: int | None) -> "list[Jid]":
        """Write copies of the job until ``limit`` of its class run or wait, at most ``max_new``; return the new ids."""
        ...

    def perform_inline(self, worker: type[Any], request: "PushRequest") -> "Jid | None":
        """Run the job here, through both middleware chains; return its id, or None when a client middleware dropped it."""
        ...

    def perform_bulk_inline(self, worker: type[Any], request: "BulkRequest") -> "list[Jid | None]":
        """Run many jobs here, one after the other, as ``perform_inline`` does. All are checked before the first runs."""
        ...

    def look_up(self, jids: "Sequence[Jid]") -> "dict[Jid, JobState]":
        """Return the states of these jobs from all shards."""
        ...

    def cancel(self, jid: "Jid") -> bool:
        """Cancel a job; return false if it is known to have ended."""
        ...

    def service(self, kind: "Late[Callable[[Any], S]]") -> S:
        """Return the object of this kind that belongs to the client; made at its first use as ``kind.load()(client)``."""
        ...

    def route(self, declaration: "Declaration") -> "Route":
        """Return where jobs of this worker go."""
        ...

    def shards_of(self, declaration: "Declaration") -> "tuple[str, ...]":
        """Return the shards that get jobs of this worker: several if it is spread, or a part of its jobs moves."""
        ...

    def home(self, declaration: "Declaration") -> str:
        """Return the shard of what is kept for this worker, such as its entries of the schedule: moves do not change it."""
        ...


class _Override(Generic[T]):
    """One block in which another object replaces the bound one. Two blocks with the same object are two."""

    __slots__ = ("bound",)

    def __init__(self, bound: T) -> None:
        self.bound = bound


class Binding(Generic[T]):
    """Hold the one object of a kind that this process has bound, or the factory that makes it at the first use.

    Within ``override`` another object is used. An object that is bound meanwhile is used after the block.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        """The message of the error when nothing is bound."""
        self._lock = threading.Lock()
        self.bound: T | None = None
        """The object in use: of the innermost block, else the bound one; ``None`` before its first use."""
        self._original: T | None = None
        self._factory: Callable[[], T] | None = None
        self._overrides: list[_Override[T]] = []
        # A thread of the parent may hold the lock while it makes the object.
        os.register_at_fork(after_in_child=self._reset_lock)

    def bind(self, bound: T) -> None:
        """Use this object from now on; within a block, after it."""
        with self._lock:
            self._original = bound
            self._update()

    def bind_factory(self, factory: Callable[[], T]) -> None:
        """Make the object with ``factory`` at its first use. A factory that fails is called again next time."""
        with self._lock:
            self._factory = factory

    def unbind(self) -> None:
        """Remove the object and the factory."""
        with self._lock:
            self._original = self._factory = None
            self._update()

    # A boot during a test does not end the test's mode.
    @contextmanager
    def override(self, bound: T) -> Generator[None, None, None]:
        """For tests: use the object within the block, whatever is bound meanwhile."""
        entry = _Override(bound)
        with self._lock:
            self._overrides.append(entry)
            self._update()
        try:
            yield
        finally:
            with self._lock:
                self._overrides.remove(entry)
                self._update()

    @contextmanager
    def unbound(self) -> Generator[None, None, None]:
        """For tests: begin the block with neither object nor factory, and restore both afterwards."""
        with self._lock:
            saved = (self._original, self._factory, self._overrides)
            self._original, self._factory, self._overrides = None, None, []
            self._update()
        try:
            yield
        finally:
            with self._lock:
                self._original, self._factory, self._overrides = saved
                self._update()

    @property
    def overridden(self) -> bool:
        return bool(self._overrides)

    def current(self) -> T:
        """Return the object in use; the factory makes it at the first use. Raises PushError when nothing is bound."""
        return self.bound or self._create()

    def original(self) -> T:
        """Return the bound object also within a block of ``override``. Raises PushError when nothing is bound."""
        with self._lock:
            return self._make()

    def _create(self) -> T:
        with self._lock:
            return self._overrides[-1].bound if self._overrides else self._make()

    def _make(self) -> T:
        if self._original is None:
            if self._factory is None:
                raise PushError(self._advice)
            self._original = self._factory()
            self._update()
        return self._original

    def _update(self) -> None:
        self.bound = self._overrides[-1].bound if self._overrides else self._original

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()


client: Binding[ClientPort] = Binding(
    "no client is bound: `import framework` (or call `framework.boot()`) before the first push."
)
"""The client through which worker classes push."""

bind, bind_factory, unbind = client.bind, client.bind_factory, client.unbind
override, current = client.override, client.current
