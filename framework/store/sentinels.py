"""Find the master through its Sentinels, and close all connections to a replaced master.

A replaced master still answers its connected clients until a sentinel demotes it. In a measured failover this took 11 s, in which
it accepted every push and then lost it, while other connections of the same process already used the new master. So all
connections of a process to a shard move together: the process asks the sentinels every second and shuts down the
connections to an earlier master. Their users see a lost connection.
"""

import contextlib
import os
import threading
from collections.abc import Collection, Iterable
from typing import Any, TypeAlias, cast
from weakref import WeakSet

import redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from framework.store.deadline import BoundedConnection
from framework.supervised_threads import SupervisedThread
from framework.text import did_you_mean

CHECK_PERIOD_S = 1.0
"""The period at which the sentinels are asked for the current master."""

# Checks without a connection until the thread ends.
_IDLE_CHECKS = 60

Address: TypeAlias = tuple[str, int]

_REFUSALS = ("NOAUTH", "NOPERM", "WRONGPASS")


class SentinelSettingsError(MasterNotFoundError):
    """Every sentinel answered, and the configuration is wrong; ``setting`` is the setting to correct."""

    def __init__(self, setting: str, message: str) -> None:
        self.setting = setting
        super().__init__(message)


class Sentinels(Sentinel):
    """The sentinels of a master, asked in turn, starting with one that knew the latest election. Safe from any thread.

    redis-py's own class reorders its list while other threads iterate over it, which can lose a sentinel permanently.
    """

    def __init__(self, clients: Iterable["redis.Redis"]) -> None:
        super().__init__([])  # type: ignore[no-untyped-call]
        self.sentinels = list(clients)
        self._first = 0

    def discover_master(self, service_name: str) -> Address:
        """Return the master's address.

        Raises:
            SentinelSettingsError: every sentinel answered, and none knows the name or accepts the credentials.
            MasterNotFoundError: no sentinel knows a master that is up; a redis ConnectionError.
        """
        count, first = len(self.sentinels), self._first
        found = _DiscoveryAnswers(service_name)
        for index in (*range(first, count), *range(first)):
            place = _place(self.sentinels[index])
            try:
                masters = self._masters(index)
            except (RedisError, OSError) as error:
                found.failed(place, error)
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):  # type: ignore[no-untyped-call]
                return _address(state)
            found.answered(place, masters)
        raise found.failure() from found.cause

    def latest_addresses(self, service_name: str) -> set[Address]:
        """Return the master's addresses by the sentinels of the latest election: one, or several names of one server."""
        found: set[Address] = set()
        highest = -1
        for index in range(len(self.sentinels)):
            with contextlib.suppress(RedisError, OSError):
                state = self._state(index, service_name)
                if state and state["config-epoch"] > highest:
                    found, highest, self._first = set[Address](), state["config-epoch"], index
                if state and state["config-epoch"] == highest:
                    found.add(_address(state))
        return found

    def _state(self, index: int, service_name: str) -> dict[str, Any] | None:
        return self._masters(index).get(service_name)

    def _masters(self, index: int) -> dict[str, dict[str, Any]]:
        return cast("dict[str, dict[str, Any]]", cast("Any", self.sentinels[index]).sentinel_masters())


class _DiscoveryAnswers:
    """The answers of sentinels that named no running master; each may have been asked twice (``_open_sentinels``)."""

    def __init__(self, service_name: str) -> None:
        self._name = service_name
        self._known: set[str] = set()
        self._down = False
        self._answered: set[str] = set()
        self._refused: dict[str, Exception] = {}
        self._unreached: dict[str, Exception] = {}

    def answered(self, place: str, masters: Collection[str]) -> None:
        self._answered.add(place)
        self._known.update(masters)
        self._down = self._down or self._name in masters

    def failed(self, place: str, error: Exception) -> None:
        (self._refused if _is_login_refusal(error) else self._unreached)[place] = error

    @property
    def cause(self) -> Exception | None:
        return next(
            (one for place, one in (*self._unreached.items(), *self._refused.items()) if self._is_open(place)), None
        )

    def failure(self) -> MasterNotFoundError:
        refused = [place for place in self._refused if place not in self._answered]
        unreached = [place for place in self._unreached if self._is_open(place) and place not in self._refused]
        if self._down:
            return MasterNotFoundError(f"the sentinels say that the master {self._name!r} is down")
        if unreached:
            reasons = "; ".join(f"{place}: {_error_text(self._unreached[place])}" for place in unreached)
            return MasterNotFoundError(f"No master found for {self._name!r}: {reasons}")
        if self._answered:
            known = sorted(self._known)
            near = did_you_mean(self._name, known)
            return SentinelSettingsError(
                "sentinel_name",
                f"no sentinel knows a master named {self._name!r}{near}; they know: {', '.join(known) or 'none'}",
            )
        place = refused[0]
        return SentinelSettingsError(
            "sentinel_password",
            f"the sentinel {place} refuses the credentials ({_error_text(self._refused[place])}): set sentinel_password to its "
            "password, and sentinel_username to its user, if it has one",
        )

    def _is_open(self, place: str) -> bool:
        return place not in self._answered


# The process asks and does not subscribe to `+switch-master`: a lost message would stay unnoticed.
class MasterWatch:
    """Shut down the connections to a replaced master; one watch serves all clients of a shard in a process."""

    def __init__(self, sentinels: Sentinels, service_name: str) -> None:
        self._sentinels = sentinels
        self._service_name = service_name
        self._connections: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._thread: SupervisedThread | None = None

    def add(self, connection: Any) -> None:
        with self._lock:
            self._connections.add(connection)
            # A dead thread would leave the connections on a replaced master.
            if self._thread is None or not self._thread.is_alive():
                thread = SupervisedThread("sentinels", self._run)
                thread.start()
                self._thread = thread

    def check(self) -> None:
        """Ask the sentinels, and shut down the connections to an earlier master."""
        named = self._sentinels.latest_addresses(self._service_name)
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            if named and (connection.host, connection.port) not in named:
                connection.shut_down()

    def reset_after_fork(self) -> None:
        """Reset the watch after a fork: the connections are the parent's, and the thread does not exist in the child."""
        self._connections = WeakSet()
        self._lock = threading.Lock()
        self._thread = None

    def _run(self) -> None:
        pause, empty = threading.Event(), 0
        while True:
            pause.wait(CHECK_PERIOD_S)
            with self._lock:
                empty = 0 if self._connections else empty + 1
                if empty > _IDLE_CHECKS:
                    self._thread = None
                    return
            self.check()


class SentinelConnection(BoundedConnection, SentinelManagedConnection):
    """A connection to a watched master."""

    def __init__(self, *, watch: MasterWatch, **settings: Any) -> None:
        super().__init__(**settings)  # type: ignore[no-untyped-call]
        self._watch = watch

    def connect_to(self, address: Address) -> None:
        super().connect_to(address)  # type: ignore[no-untyped-call]
        self._watch.add(self)


class SentinelSSLConnection(SentinelConnection, SentinelManagedSSLConnection):
    """A connection to a watched master with TLS."""


_watches: dict[Any, MasterWatch] = {}


def master_watch(sentinels: Sentinels, addresses: tuple[Address, ...], service_name: str) -> MasterWatch:
    """Return the process's watch of the master of this name; the first call sets its sentinels."""
    return _watches.setdefault((addresses, service_name), MasterWatch(sentinels, service_name))


def _place(client: "redis.Redis") -> str:
    settings = client.connection_pool.connection_kwargs
    host = str(settings["host"])
    return f"[{host}]:{settings['port']}" if ":" in host else f"{host}:{settings['port']}"


def _is_login_refusal(error: Exception) -> bool:
    """Return whether a sentinel refuses the credentials. A sentinel without a password refuses any password by another error."""
    return isinstance(error, AuthenticationError | NoPermissionError) or str(error).startswith(_REFUSALS)


def _error_text(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _address(state: dict[str, Any]) -> Address:
    return state["ip"], state["port"]


def _reset_all_after_fork() -> None:
    for one in _watches.values():
        one.reset_after_fork()


os.register_at_fork(after_in_child=_reset_all_after_fork)
