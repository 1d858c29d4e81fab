"""The port through which worker classes push. ``wiring`` binds the real client to it; importing it opens no connection."""

import os
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from framework.errors import PushError

# `import framework` loads this module. pydantic, which these modules import, is loaded with the first worker class.
if TYPE_CHECKING:
    from framework.declare.declaration import Declaration
    from framework.declare.request import BulkRequest, PushRequest, Route
    from framework.types import Jid, JobState


class ClientPort(Protocol):
    """The interface of the client, or of a fake in tests. Requests arrive bound; the client checks them."""

    def push(self, request: "PushRequest") -> "Jid | None":
        """Write one job; return its id, or None when a client middleware dropped it."""
        ...

    def push_bulk(self, request: "BulkRequest") -> "list[Jid | None]":
        """Write many jobs; return the ids in the order of the arguments."""
        ...

    def push_up_to(self, request: "PushRequest", limit: int, max_new: int | None) -> "list[Jid]":
        """Write copies of the job until ``limit`` of its class run or wait, at most ``most``; return the new ids."""
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

    def route(self, declaration: "Declaration") -> "Route":
        """Return where jobs of this worker go."""
        ...


class _Binding:
    """The client that this process has bound, or the factory that makes it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.client: ClientPort | None = None
        self.factory: Callable[[], ClientPort] | None = None


_binding = _Binding()


def _reset_lock_after_fork() -> None:
    _binding.lock = threading.Lock()


# A thread of the parent may have held the lock while it made the client.
os.register_at_fork(after_in_child=_reset_lock_after_fork)


def bind(client: ClientPort) -> None:
    """Let worker classes push through ``client``."""
    with _binding.lock:
        _binding.client = client


def bind_factory(factory: Callable[[], ClientPort]) -> None:
    """Make the client with ``factory`` at the first use of a worker class. A factory that fails is called again next time."""
    with _binding.lock:
        _binding.factory = factory


def unbind() -> None:
    """Remove the client and the factory."""
    with _binding.lock:
        _binding.client = None
        _binding.factory = None


@contextmanager
def override(client: ClientPort | None) -> Generator[None, None, None]:
    """For tests: bind ``client`` within the block (None: neither client nor factory), and restore the binding afterwards."""
    with _binding.lock:
        saved = (_binding.client, _binding.factory)
        _binding.client, _binding.factory = client, None
    try:
        yield
    finally:
        with _binding.lock:
            _binding.client, _binding.factory = saved


def current() -> ClientPort:
    """Return the bound client; the factory makes it at the first use. Raises PushError when nothing is bound."""
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
