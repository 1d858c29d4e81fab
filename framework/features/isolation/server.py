"""Start the processes of isolated jobs, from a process that has loaded the workers and has no threads.

A worker process has threads, so it must not fork: a lock that a thread holds would stay locked in the child. It starts this process
once, by exec, with its first isolated job. Each job then costs one fork. If the workers' modules start threads when they are
imported (some libraries in C do), each job gets a new interpreter instead, which imports them again.

Each job has three sockets. The first connects its process with the worker process. The second is between the worker process and
this one: a byte, or its end, kills the job's process and all that it has started; the answer says how it ended. Over the third the
job's process sends its stacks (``stacks.py``). The end of the socket over which jobs come (the worker process has ended) kills all
of them.

A job may start daemons in sessions of their own, which are in no group of it. The job's process adopts them while it lives, and this
process after its end (both are subreapers). So a child of this process that is no job's process belongs to a job that has ended.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from framework.features.isolation.channel import READY, encoded_object

StartProcess: TypeAlias = Callable[[socket.socket, socket.socket], int]

_IGNORED = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN, signal.SIGHUP, signal.SIGURG),
)
"""The signals of a worker process, which the system sends to its whole group: it decides when its jobs end."""


_LEFT_LIMIT_S = 2.0
"""The longest wait for the ends of the processes that a job has left. A process of another user, or in the kernel, survives it."""
_LEFT_PERIOD_MS = 10


# One forked process for each job, from a process without threads: a fork of the worker process would copy locks that other
# threads hold, and a process that is used again keeps what a job leaked.
class JobServer:
    """Start a process for each job that comes over ``control``; ``run_job`` runs it in a fork, ``exec_job`` in a new interpreter."""

    def __init__(
        self,
        control: socket.socket,
        run_job: Callable[[socket.socket, socket.socket], NoReturn],
        exec_job: StartProcess,
    ) -> None:
        self._control = control
        self._run_job = run_job
        self._exec_job = exec_job
        self._running: dict[int, socket.socket] = {}
        """The socket of each job, by the id of its process."""
        self._spared = own_children()
        """Children that no job has left: those of the workers' modules, and those that could not be killed."""
        self._parent = os.getppid()
        self._wakeup, self._wakeup_writer = socket.socketpair()

    def run(self) -> NoReturn:
        """Report that the modules are loaded, and serve until the worker process ends; end this process."""
        self._install_signals()
        adopt_orphans()
        end_with_parent(signal.SIGTERM)
        # The worker process has ended.
        with contextlib.suppress(OSError):
            self._control.send(READY)
        while os.getppid() == self._parent:
            poll = select.poll()
            for one in (self._control, self._wakeup, *self._running.values()):
                poll.register(one, select.POLLIN)
            ready = {number for number, _ in poll.poll()}
            self._clear_wakeup()
            self._reap()
            for pid, one in list(self._running.items()):
                if one.fileno() in ready:
                    # Its end is reaped as that of any other.
                    kill_group(pid)
            if self._control.fileno() in ready and not self._accept():
                break
        for pid in self._running:
            kill_group(pid)
        while self._running and self._reap(wait=True):
            pass
        # Not by a return: a signal during the end of the interpreter meets a closed wake-up descriptor, or no handler any more.
        os._exit(0)

    def _install_signals(self) -> None:
        for one in (self._wakeup, self._wakeup_writer):
            one.setblocking(False)
        for number in (*_IGNORED, signal.SIGCHLD):
            # A handler and not SIG_IGN, which the processes that a job starts would inherit.
            signal.signal(number, _ignore)
        signal.set_wakeup_fd(self._wakeup_writer.fileno(), warn_on_full_buffer=False)

    def _clear_wakeup(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4_096)

    def _accept(self) -> bool:
        """Start the process of one job; return false if the worker process has ended."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, 3)
        except ConnectionResetError:
            # The other end was closed while the byte that says that this process is ready was unread, as it always is.
            return False
        if not data:
            return False
        job, status, stacks = (socket.socket(fileno=one) for one in descriptors)
        for one in (job, status, stacks):
            # Descriptors that are received are inheritable.
            one.set_inheritable(False)
        threads = thread_count()
        try:
            pid = self._exec_job(job, stacks) if threads > 1 else self._fork(job, stacks, status)
        # No memory, or too many processes.
        except OSError as error:
            _tell(status, {"failed": str(error)})
            status.close()
        else:
            self._running[pid] = status
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            _tell(status, {"started": pid, "threads": threads})
        job.close()
        stacks.close()
        return True

    def _fork(self, job: socket.socket, stacks: socket.socket, status: socket.socket) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Else the sockets of other jobs would stay open as long as this one.
            for one in (self._control, self._wakeup, self._wakeup_writer, status, *self._running.values()):
                one.close()
            self._run_job(job, stacks)
        except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as the server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self, *, wait: bool = False) -> bool:
        """Collect the processes that have ended; return false if there is none left."""
        options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return False
            if found is None:
                return True
            if found.si_pid in self._running:
                # Before it is reaped: until then its id, and so that of its group, cannot be another's.
                kill_group(found.si_pid)
                self._end_left_processes()
            pid, status, usage = os.wait4(found.si_pid, 0)
            self._spared.discard(pid)
            connection = self._running.pop(pid, None)
            if connection is not None:
                scale = 1 if sys.platform == "darwin" else 1_024
                end = {
                    "pid": pid,
                    "status": os.waitstatus_to_exitcode(status),
                    "cpu_s": usage.ru_utime + usage.ru_stime,
                    "peak_bytes": usage.ru_maxrss * scale,
                }
                _tell(connection, end)
                connection.close()
            if wait:
                return True

    def _end_left_processes(self) -> None:
        """Kill the processes that ended jobs have left, and wait for their ends: their own children then are children of this one."""
        poll, deadline = select.poll(), time.monotonic() + _LEFT_LIMIT_S
        poll.register(self._wakeup, select.POLLIN)
        while left := own_children() - self._running.keys() - self._spared:
            if time.monotonic() > deadline:
                self._spared |= left
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            for pid in left:
                os.waitpid(pid, os.WNOHANG)
            poll.poll(_LEFT_PERIOD_MS)
            self._clear_wakeup()


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    # The worker process has ended, or has given the job up.
    with contextlib.suppress(OSError):
        connection.sendall(encoded_object(message))


def _ignore(_number: int, _frame: object) -> None: ...


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
RESERVE_BYTES = 64 << 20
"""The memory beyond its limit with which a process reports the end of its job."""


def end_with_parent(number: int) -> None:
    """Let the system send the signal ``number`` to this process when its parent ends. (The thread that started it, to be exact.)"""
    _control(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Become the parent of processes whose parent ends below this one: daemons in sessions of their own cannot get away."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


def _control(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def kill_group(pid: int) -> None:
    # It may have no group of its own yet.
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def own_children() -> set[int]:
    """Return the processes that this process has started or adopted; empty where the system does not tell."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return set()


def kill_marked(variable: str) -> None:
    """Kill each process that was started with ``variable`` (``NAME=value``) in its environment. Does nothing without ``/proc``."""
    for entry in Path("/proc").glob("[0-9]*"):
        # It has ended, or belongs to another user.
        with suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)


def thread_count() -> int:
    """Return the number of this process's threads, those of libraries in C included where the system lists them."""
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return threading.active_count()


def used_memory() -> int:
    """Return the bytes that ``limit_memory`` counts; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
    except (OSError, StopIteration):
        return 0


def limit_memory(limit: int) -> None:
    """Limit the private memory of this process, and of each process that it starts. Raises OSError or ValueError."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit + RESERVE_BYTES))


def use_reserve() -> None:
    """Permit the reserve beyond the limit of memory: from now on the process only reports."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
