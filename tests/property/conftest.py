import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from redis import Redis

from framework.store.embedded import EmbeddedServer
from tests.harness import until
from tests.proofs.machine.rules import machine_on
from tests.proofs.machine.simulated_cluster import SimulatedCluster

SEIZE, INTERRUPT, EVERY_THREAD = 0x4206, 0x4207, 0x40000000
"""PTRACE_SEIZE, PTRACE_INTERRUPT, __WALL of Linux, which the standard library lacks."""


@pytest.fixture
def cluster(server, second_server, short_path):
    """Two servers, and simulated processes; see tests/proofs/machine."""
    for one in (server, second_server):
        one.start()
    made = SimulatedCluster(short_path, {"main": server, "second": second_server})
    made.open()
    yield made
    made.close()


@pytest.fixture
def state(cluster):
    """A history by hand, in the form in which hypothesis prints a counterexample; it ends with ``state.teardown()``."""
    machine = machine_on(cluster)()
    yield machine
    cluster.abandon()


@pytest.fixture
def busy_disk() -> Iterator[Callable[[EmbeddedServer], None]]:
    """Block every later fsync of the server until the server or the test has ended."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(_without_fsync(server))


@contextmanager
def _without_fsync(server: EmbeddedServer) -> Iterator[None]:
    held, over = threading.Event(), threading.Event()
    with server.open() as client:
        # The server requests no fsync while it turns the file on, and to end that it may need the thread.
        until(lambda: _is_file_on(client), "its file is on")
    # The tracing process must outlive the stopped thread: a server whose thread is not reaped never exits.
    tracer = threading.Thread(target=_hold, args=(_fsync_thread(server), held, over))
    tracer.start()
    try:
        until(lambda: held.is_set() or not tracer.is_alive())
        if not held.is_set():
            pytest.skip("a thread of another process may not be stopped here")
        with server.open() as client:
            until(lambda: _pending(client), "it waits for its disk")
        yield
    finally:
        over.set()
        tracer.join()


def _fsync_thread(server: EmbeddedServer) -> int:
    threads = Path(f"/proc/{server.pid}/task")
    if not threads.exists():
        pytest.skip("this system does not show the threads of a process")
    (found,) = (int(one.name) for one in threads.iterdir() if (one / "comm").read_text().startswith("bio_aof"))
    return found


def _hold(thread: int, held: threading.Event, over: threading.Event) -> None:
    """Stop the thread; it continues when this process ends."""
    ptrace = ctypes.CDLL(None).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    if ptrace(SEIZE, thread, None, None) or ptrace(INTERRUPT, thread, None, None):
        return
    os.waitpid(thread, EVERY_THREAD)
    held.set()
    while not over.wait(0.01):
        if os.waitpid(thread, EVERY_THREAD | os.WNOHANG)[0]:
            return


def _is_file_on(client: Redis) -> bool:
    facts = client.info("persistence")
    return not (facts["aof_rewrite_in_progress"] or facts["aof_rewrite_scheduled"])


def _pending(client: Redis) -> bool:
    """Return whether the server has requested an fsync: at most once a second, and only after a write."""
    client.set("written", 1)
    client.delete("written")
    return bool(client.info("persistence").get("aof_pending_bio_fsync"))
