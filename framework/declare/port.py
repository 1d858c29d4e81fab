"""The door through which worker classes push. ``wiring`` puts the real client behind it; importing opens nothing."""

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from framework.errors import PushError

if TYPE_CHECKING:  # `import framework` loads this module: pydantic, behind these, waits for the first worker class
    from framework.declare.declaration import Declaration
    from framework.declare.request import BulkRequest, PushRequest, Route
    from framework.types import Jid, JobState


class ClientPort(Protocol):
    """What stands behind the port: the client, or a fake in tests. Requests arrive bound; the client checks them."""

    def push(self, request: "PushRequest") -> "Jid | None":
        """Write one job; its id, or None when a client middleware dropped it."""
        ...

    def push_bulk(self, request: "BulkRequest") -> "list[Jid | None]":
        """Write many jobs; the ids stand where the arguments stood."""
        ...

    def push_up_to(self, request: "PushRequest", limit: int, max_new: int | None) -> "list[Jid]":
        """Write copies of the job until ``limit`` of its class run or wait, at most ``most``; return the ids of the new ones."""
        ...

    def perform_inline(self, worker: type[Any], request: "PushRequest") -> "Jid | None":
        """Run the job here and now, through both middleware chains; its id, or None when a client middleware dropped it."""
        ...

    def perform_bulk_inline(self, worker: type[Any], request: "BulkRequest") -> "list[Jid | None]":
        """Run many jobs here and now, one after the other, all checked before the first; as ``perform_inline``."""
        ...

    def look_up(self, jids: "Sequence[Jid]") -> "dict[Jid, JobState]":
        """The states of these jobs, whichever shard has them."""
        ...

    def route(self, declaration: "Declaration") -> "Route":
        """Where jobs of this worker go."""
        ...


class _Binding:
    """The one binding of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: ClientPort | None = None
        self.factory: Callable[[], ClientPort] | None = None


_binding = _Binding()


def _reset_lock_after_fork() -> None:
    _binding.lock = threading.Lock()


os.register_at_fork(after_in_child=_reset_lock_after_fork)  # a thread of the parent may have held it, making the client


def bind(client: ClientPort) -> None:
    """From now on worker classes push through ``client``."""
    with _binding.lock:
        _binding.client = client


def bind_factory(factory: Callable[[], ClientPort]) -> None:
    """The first use of a worker class calls ``factory`` and binds what it returns; a failing factory is asked again."""
    with _binding.lock:
        _binding.factory = factory


def unbind() -> None:
    """Nothing is bound any more, neither a client nor a factory."""
    with _binding.lock:
        _binding.client = None
        _binding.factory = None


@contextmanager
def override(client: ClientPort | None) -> Generator[None, None, None]:
    """For tests: within the block this is bound (None: nothing is, and no factory); afterwards all is as before."""
    with _binding.lock:
        saved = (_binding.client, _binding.factory)
        _binding.client, _binding.factory = client, None
    try:
        yield
    finally:
        with _binding.lock:
            _binding.client, _binding.factory = saved


def current() -> ClientPort:
    """What is bound, made by the factory on first use. Raises PushError when nothing is bound."""
    bound = _binding.client
    return bound if bound is not None else _create_client()


def _create_client() -> ClientPort:
    with _binding.lock:
        if _binding.client is None:
            if _binding.factory is None:
                raise PushError(
                    "no client is bound: `import framework` (or call `framework.boot()`) before the first push."
                )
            _binding.client = _binding.factory()
        return _binding.client
