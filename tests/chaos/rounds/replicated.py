"""Run a shard with Sentinel: a master, a replica and three sentinels, all of the same binary, on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.embedded import LAUNCHER, find_server_binaries
from tests.chaos.rounds.history import Fetchers, Files
from tests.chaos.rounds.stores import Store
from tests.proofs.prover import Verdict
from tests.servers.guarded import ALL_RIGHTS, PASSWORD, credentials, taken_refusals, user_lines, with_all_rights

NAME = "chaos"
DOWN_AFTER_MS = 2_000
"""The silence after which a sentinel counts a master as dead."""

WITNESS_MS = 100
"""The time in which a push must reach the replica (WAIT)."""

_FAILOVER_TIMEOUT_MS = 5_000
_START_S, _STOP_S = 20.0, 10.0
_ANSWER_S = 2.0
_GREETING = "default ping ("
"""A replica greets its master with PING before it logs in, and accepts an error as an answer."""
_PAUSE_S = 0.02


class Node:
    """One server or sentinel: a process that ends with this one."""

    def __init__(self, folder: Path, *lines: str, sentinel: bool = False) -> None:
        self.folder = folder
        self.port = _free_port()
        self.files = Files(folder)
        self._lines, self._sentinel = lines, sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.url = with_all_rights(f"redis://127.0.0.1:{self.port}/0")
        self.client = self._ask_sentinel() if sentinel else self.open_client(read_timeout_s=_ANSWER_S)

    @property
    def address(self) -> tuple[str, int]:
        """Return host and port."""
        return "127.0.0.1", self.port

    def open_client(self, *, read_timeout_s: float = COMMAND_TIMEOUT_S) -> Redis:
        """Return a client of a server, with all rights."""
        return open_client(Endpoint(self.url), name="chaos", read_timeout_s=read_timeout_s)

    def _ask_sentinel(self) -> Redis:
        """Return a plain client: those of the framework refuse a sentinel, which holds no jobs and has no users of the
        framework.
        """
        host, port = self.address
        return Redis(host, port, socket_timeout=_ANSWER_S, retry=Retry(NoBackoff(), 0), driver_info=None)

    def start(self, *more: str) -> None:
        """Start it with further lines of configuration; return when it answers."""
        self.folder.mkdir(exist_ok=True)
        conf = self.folder / "server.conf"
        base = [f"port {self.port}", "bind 127.0.0.1", f"dir {json.dumps(str(self.folder))}"]
        conf.write_text("\n".join([*base, *self._lines, *more, ""]))
        binary = next(iter(find_server_binaries().values()))
        command = [str(binary), str(conf), *(["--sentinel"] if self._sentinel else [])]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), "no", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self.answers():
            assert time.monotonic() < deadline, f"{self.folder} does not come up"  # noqa: S101
            time.sleep(_PAUSE_S)

    def answers(self) -> bool:
        """Return whether it answers now."""
        with suppress(RedisError):
            return bool(self.client.ping())
        return False

    def role(self) -> str:
        """Return ``master`` or ``slave``; empty when it does not answer."""
        with suppress(RedisError):
            found = cast("Sequence[bytes]", self.client.role())
            return found[0].decode()
        return ""

    def follows(self, port: int) -> bool:
        """Return whether it is a replica of the server on ``port``, and has all its data, also in its file: until then
        it writes to a file without a number.
        """
        with suppress(RedisError):
            info = cast("dict[str, Any]", self.client.info("replication"))
            file = cast("dict[str, Any]", self.client.info("persistence"))
            rewritten = not (file["aof_rewrite_in_progress"] or file["aof_rewrite_scheduled"])
            return info.get("master_port") == port and info["master_link_status"] == "up" and rewritten
        return False

    def send(self, number: int) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End it, by force after a while."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self.client.connection_pool.disconnect()


class ReplicatedStore(Store):
    """Two servers, one of them master, and three sentinels. ``witnesses`` is ``min-replicas-to-write``."""

    def __init__(self, folder: Path, *, witnesses: int = 0) -> None:
        self.folder = folder
        self.witnesses = witnesses
        # The files stay when a resync starts others, and are plain commands throughout.
        files = ("appendonly yes", "aof-use-rdb-preamble no", "aof-disable-auto-gc yes", "aof-timestamp-enabled yes")
        # With an fsync each second, a server holds back answered writes for up to 2 s while the disk is busy. Its file
        # would have them later than the replica's, or never after kill -9.
        kept = (*files, "auto-aof-rewrite-percentage 0", "appendfsync no")
        sync = ("repl-diskless-sync yes", "repl-diskless-sync-delay 0", 'save ""', "maxmemory-policy noeviction")
        least = (f"min-replicas-to-write {witnesses}", "min-replicas-max-lag 10")
        # A replica logs in to its master, and a sentinel to both: neither is a role of the framework.
        users = (f"masteruser {ALL_RIGHTS}", f"masterauth {PASSWORD}", *user_lines())
        self.nodes = [Node(folder / f"node-{number}", *kept, *sync, *least, *users) for number in range(2)]
        watch = (
            f"sentinel monitor {NAME} 127.0.0.1 {self.nodes[0].port} 2",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} {_FAILOVER_TIMEOUT_MS}",
            f"sentinel auth-user {NAME} {ALL_RIGHTS}",
            f"sentinel auth-pass {NAME} {PASSWORD}",
        )
        self.sentinels = [Node(folder / f"sentinel-{number}", *watch, sentinel=True) for number in range(3)]

    def __enter__(self) -> Self:
        self.folder.mkdir()
        first, second = self.nodes
        try:
            first.start()
            second.start(f"replicaof 127.0.0.1 {first.port}")
            for sentinel in self.sentinels:
                sentinel.start()
            deadline = time.monotonic() + _START_S
            while not self._settled():
                assert time.monotonic() < deadline, "the sentinels do not find one another"  # noqa: S101
                time.sleep(_PAUSE_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in (*self.sentinels, *self.nodes):
            node.send(signal.SIGCONT)
            node.stop(signal.SIGTERM)
            node.client.close()

    @property
    def settings(self) -> Mapping[str, Any]:
        named = {"sentinels": [f"127.0.0.1:{one.port}" for one in self.sentinels], "sentinel_name": NAME}
        return named | credentials("producer")

    @property
    def client(self) -> Redis:
        return self.master.client

    @property
    def marks(self) -> str:
        return ""

    def refusals(self) -> list[str]:
        """Return the refused rights of the servers as they were last started."""
        found = [one for node in self.nodes if node.answers() for one in taken_refusals(node.client)]
        return [one for one in found if not one.startswith(_GREETING)]

    def fetchers(self) -> Fetchers:
        """Return for each job the fetchers of the server that knows more of them: each has missed some writes."""
        first, second = (node.files.fetchers() for node in self.nodes)
        return {
            serial: max(first.get(serial, ()), second.get(serial, ()), key=len)
            for serial in first.keys() | second.keys()
        }

    def history(self) -> Verdict | None:
        """Return None: after a resync a server's files start in the middle."""
        return None

    @property
    def master(self) -> Node:
        """Return the master that most sentinels name."""
        named = [port for one in self.sentinels if (port := _named_by(one))]
        port = max(named, key=named.count, default=self.nodes[0].port)
        return next(node for node in self.nodes if node.port == port)

    @property
    def replica(self) -> Node:
        """Return the other server."""
        master = self.master
        return next(node for node in self.nodes if node is not master)

    def all_name(self, node: Node) -> bool:
        """Return whether every sentinel names it, and it is a master."""
        return all(_named_by(one) == node.port for one in self.sentinels) and node.role() == "master"

    def witness(self) -> Callable[[], bool]:
        """Check that the current master is still the master after the push, with the push on its replica."""
        node = self.master

        def ask() -> bool:
            # WAIT waits for the writes before the last command of its connection, of all clients.
            with (
                suppress(RedisError),
                node.open_client() as client,
            ):
                role = cast("Sequence[bytes]", client.role())
                return role[0] == b"master" and int(client.wait(1, WITNESS_MS)) >= 1
            return False

        return ask

    def _settled(self) -> bool:
        """Return whether each sentinel knows the others and the replica, and the replica has the data."""
        for one in self.sentinels:
            state = cast("dict[str, Any]", cast("Any", one.client).sentinel_master(NAME))
            if (state["num-slaves"], state["num-other-sentinels"]) != (1, 2):
                return False
        return self.nodes[1].follows(self.nodes[0].port)


def _named_by(sentinel: Node) -> int:
    """Return the port of the master that a sentinel names; 0 when it does not answer."""
    with suppress(RedisError):
        found = cast("Any", sentinel.client).sentinel_get_master_addr_by_name(NAME)
        return int(found[1]) if found else 0
    return 0


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
