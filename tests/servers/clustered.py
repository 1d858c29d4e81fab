"""Run a cluster of three nodes on loopback, each with a third of the slots, and move slots between its nodes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import socket
from types import TracebackType
from typing import Any, Self, cast

from redis import Redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.embedded import LAUNCHER
from framework.store.key_prefix import key_prefix
from tests.servers.guarded import ALL_RIGHTS, PASSWORD, taken_refusals, user_lines

SLOTS = 16_384
TAGS = ("main", "second")
"""The hash tags of the shards of the tests."""

NODE_TIMEOUT_MS = 1_000
"""The silence after which the nodes count one as dead."""

_PATIENCE_S = 30.0
_PAUSE_S = 0.02


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """Return what ``condition`` returns as soon as it is true."""
    until = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < until, f"not true in time: {what}"  # noqa: S101
        time.sleep(_PAUSE_S)
    return found


class ClusterNode:
    """One server of a cluster: a process that ends with this one."""

    def __init__(self, folder: Path, binary: Path, prefixes: Sequence[str], certificates: Path | None = None) -> None:
        self.folder = folder
        self._certificates = certificates
        self.port, self._bus = _free_port(), _free_port()
        self._binary, self._prefixes = binary, prefixes
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Redis(
            "127.0.0.1",
            self.port,
            username=ALL_RIGHTS,
            password=PASSWORD,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,
            ssl=certificates is not None,
            ssl_ca_certs=certificates and str(certificates / "ca.pem"),
        )
        """A plain client of the node with all rights."""

    def start(self) -> None:
        """Start it; return when it answers."""
        self.folder.mkdir(exist_ok=True)
        lines = [
            *self._ports(),
            f"cluster-port {self._bus}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            "cluster-enabled yes",
            f"cluster-node-timeout {NODE_TIMEOUT_MS}",
            # Half of a cluster may go on serving in a test.
            "cluster-require-full-coverage no",
            "appendonly yes",
            'save ""',
            f"masteruser {ALL_RIGHTS}",
            f"masterauth {PASSWORD}",
            *user_lines(prefixes=tuple(self._prefixes)),
        ]
        conf = self.folder / "server.conf"
        conf.write_text("\n".join([*lines, ""]))
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), "no", str(self._binary), str(conf)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.answers, f"{self.folder} answers")

    def _ports(self) -> list[str]:
        if self._certificates is None:
            return [f"port {self.port}"]
        files = {"ca-cert-file": "ca.pem", "cert-file": "server.pem", "key-file": "server.key"}
        return [
            "port 0",
            f"tls-port {self.port}",
            "tls-cluster yes",
            "tls-replication yes",
            "tls-auth-clients no",
            *(f"tls-{name} {self._certificates / file}" for name, file in files.items()),
        ]

    def answers(self) -> bool:
        """Return whether it answers now."""
        with suppress(RedisError):
            return bool(self.client.ping())
        return False

    def stop(self, how: int = signal.SIGKILL) -> None:
        """End it, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None
        self.client.connection_pool.disconnect()

    def send(self, number: int) -> None:
        """Send a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def ask(self, *words: Any) -> Any:
        """Return the reply to a command of CLUSTER."""
        return cast("Any", self.client).execute_command("CLUSTER", *words)

    @property
    def id(self) -> str:
        """Return its name in the cluster."""
        return _text(self.ask("MYID"))

    def is_master(self) -> bool:
        """Return whether it answers and is no replica."""
        return self.answers() and _text(cast("Any", self.client).execute_command("ROLE")[0]) == "master"

    def follows(self, name: str) -> bool:
        """Return whether it is a replica of the node of this name in the cluster."""
        lines = self.ask("NODES")
        nodes = lines.values() if isinstance(lines, dict) else _text(lines).splitlines()
        return not self.is_master() and any(name in str(one) for one in nodes if "myself" in str(one))

    def is_in_step(self) -> bool:
        """Return whether it has the data of its master."""
        return str(cast("Any", self.client.info("replication")).get("master_link_status")) == "up"

    def names_holder(self, slot: int) -> int | None:
        """Return the port of the master that holds a slot by what this node says."""
        return next((one[2][1] for one in self.ask("SLOTS") if one[0] <= slot <= one[1]), None)

    def meet(self, other: "ClusterNode") -> None:
        """Let it know another node."""
        self.ask("MEET", "127.0.0.1", other.port, other._bus)

    def knows(self, count: int) -> bool:
        """Return whether the cluster serves, and it knows so many nodes."""
        state = self.client.execute_command("CLUSTER", "INFO")
        text = state if isinstance(state, dict) else dict(line.split(":") for line in _text(state).split())
        return text["cluster_state"] == "ok" and int(text["cluster_known_nodes"]) == count


class RedisCluster:
    """Three nodes that hold the slots together, and perhaps a replica of each."""

    def __init__(
        self,
        folder: Path,
        binary: Path,
        *,
        tags: Sequence[str],
        replicas: bool = False,
        certificates: Path | None = None,
    ) -> None:
        """``certificates``: the folder of an ``Authority``; the nodes speak TLS only, also to each other."""
        self.moves_at_once = "valkey" in binary.name
        """Whether the servers have Valkey's own migration of slots."""
        prefixes = [key_prefix(tag) for tag in tags]
        self._secure = certificates is not None
        places = [folder / str(at) for at in range(6 if replicas else 3)]
        self.nodes = [ClusterNode(place, binary, prefixes, certificates) for place in places]

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        masters = self.nodes[:3]
        for at, node in enumerate(masters):
            node.ask("ADDSLOTSRANGE", SLOTS * at // 3, SLOTS * (at + 1) // 3 - 1)
            node.ask("SET-CONFIG-EPOCH", at + 1)
        for node in self.nodes[1:]:
            self.nodes[0].meet(node)
        wait_for(lambda: all(node.knows(len(self.nodes)) for node in self.nodes), "the nodes know each other")
        for master, replica in zip(masters, self.nodes[3:], strict=False):
            replica.ask("REPLICATE", master.id)
        wait_for(lambda: all(node.knows(len(self.nodes)) for node in self.nodes), "the replicas follow")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        """Return the URL for shards."""
        return f"redis{'s' * self._secure}+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def endpoint(self, tag: str = "main", *nodes: ClusterNode) -> Endpoint:
        """Return the endpoint of a shard, which knows these nodes, else all; its user has all rights."""
        options = (("username", ALL_RIGHTS), ("password", PASSWORD))
        places = tuple(("127.0.0.1", node.port) for node in nodes or self.nodes)
        return Endpoint("", options=options, cluster=places, tag=tag)

    def empty(self) -> None:
        """Remove all data, and forget the refusals."""
        for node in self.nodes:
            with suppress(ReadOnlyError):
                node.client.flushall()
            node.client.acl_log_reset()

    def refusals(self) -> list[str]:
        """Return what the nodes have refused to their users."""
        return [one for node in self.nodes if node.answers() for one in taken_refusals(node.client)]

    def keys(self, tag: str) -> dict[str, Any]:
        """Return all keys of a shard, without its prefix, with the nodes that have them."""
        prefix = key_prefix(tag)
        return {
            name.removeprefix(prefix): node.port
            for node in self.nodes
            if node.is_master()
            for key in node.client.keys(f"{prefix}*")
            for name in [_text(key)]
        }

    def holder(self, tag: str) -> ClusterNode:
        """Return the node that holds the slot of a hash tag."""
        return next(node for node in self.nodes if node.answers() and self.holds(node, tag))

    def holds(self, node: ClusterNode, tag: str) -> bool:
        """Return whether a node says that it holds the slot of a tag."""
        try:
            cast("Any", node.client).execute_command("TTL", f"{key_prefix(tag)}never")
        except ResponseError as error:
            return "ASK" in type(error).__name__.upper()
        return True

    def agreed_holder(self, tag: str) -> ClusterNode | None:
        """Return the node that holds the slot of a tag by what all nodes say; ``None`` while they differ, as after a takeover."""
        slot = key_slot(key_prefix(tag).encode())
        named = {node.names_holder(slot) for node in self.nodes if node.answers()}
        return next((node for node in self.nodes if named == {node.port}), None)

    def others(self, node: ClusterNode) -> list[ClusterNode]:
        """Return the other masters."""
        return [one for one in self.nodes if one is not node and one.is_master()]

    def move_key_by_key(self, tag: str, target: ClusterNode, between: Callable[[], Any] = int) -> None:
        """Move the slot of a tag as ``redis-cli --cluster reshard`` does; ``between`` is called before each step of ten keys."""
        slot, source = key_slot(key_prefix(tag).encode()), self._agreed(tag)
        target.ask("SETSLOT", slot, "IMPORTING", source.id)
        source.ask("SETSLOT", slot, "MIGRATING", target.id)
        while True:
            between()
            found = source.ask("GETKEYSINSLOT", slot, 10)
            if not found:
                break
            login = ("AUTH2", ALL_RIGHTS, PASSWORD)
            cast("Any", source.client).execute_command(
                "MIGRATE", "127.0.0.1", target.port, "", 0, 5_000, *login, "KEYS", *found
            )
        for node in (target, source, *self.others(source)):
            node.ask("SETSLOT", slot, "NODE", target.id)

    def move_at_once(self, tag: str, target: ClusterNode) -> None:
        """Move the slot of a tag by Valkey's own migration; return when the target holds it."""
        slot, source = key_slot(key_prefix(tag).encode()), self._agreed(tag)
        source.ask("MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
        wait_for(lambda: self.holds(target, tag), "the slot has moved")

    def _agreed(self, tag: str) -> ClusterNode:
        # A former master says for a moment that it holds the slot still.
        return cast(
            "ClusterNode", wait_for(lambda: self.agreed_holder(tag), "the nodes agree on the holder of the slot")
        )

    def take_over(self, tag: str, target: ClusterNode) -> None:
        """Give the slot of a tag to a node without its data, while the holder is away."""
        slot, name = key_slot(key_prefix(tag).encode()), target.id
        for node in self.nodes:
            with suppress(RedisTimeoutError):
                node.ask("SETSLOT", slot, "NODE", name)
        # When the holder goes on, the higher epoch wins.
        target.ask("BUMPEPOCH")


class ClusterShard:
    """A shard on a cluster in the place of a server of its own (``GuardedServer``)."""

    running = True

    def __init__(self, cluster: RedisCluster, tag: str) -> None:
        self._cluster, self._tag = cluster, tag
        self.url = f"{cluster.url}?tag={tag}"

    def open(self, name: str = "tests", *, read_timeout_s: float = COMMAND_TIMEOUT_S) -> Redis:
        """Return a client with all rights; FLUSHALL removes the keys of the shard."""
        client = open_client(self._cluster.endpoint(self._tag), name=name, read_timeout_s=read_timeout_s)
        cast("Any", client).flushall = lambda: _remove_all(client)
        return client

    def empty(self, client: Redis) -> None:
        """Remove all data of the shard, and forget the refusals."""
        _remove_all(client)
        self._cluster.refusals()

    def refusals(self, _: Redis | None = None) -> list[str]:
        """Return the refusals of the nodes since it was emptied."""
        return self._cluster.refusals()


def _remove_all(client: Redis) -> None:
    if found := cast("list[bytes]", client.keys("*")):
        client.unlink(*found)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _free_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
