"""Run a server with a user per role (framework/store/rights.py), so that tests and campaigns run with the published
rights.

default          has the rights of a worker and of an operator together: for processes with the plain URL
role-ROLE        has exactly those of one role
all-rights       is for a test's own work on a server: empty it, configure it, read every key, act as another program

The users are in the server's configuration, so they exist from its first answer on, and after each restart.
"""

import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, urlsplit

from redis import Redis
from redis.exceptions import RedisError

from framework.store.connect import COMMAND_TIMEOUT_S, Endpoint, open_client
from framework.store.embedded import EmbeddedServer
from framework.store.rights import OPERATOR, PRODUCER, ROLES, WORKER

PASSWORD: Final = "of-a-role"  # noqa: S105 - of servers that end with the test
ALL_RIGHTS: Final = "all-rights"
_KEPT_FROM_PRODUCERS: Final = f"role-{PRODUCER.name} srandmember ("
"""A producer's boot asks for queues that no process serves, and its role may not look."""

_EVERYTHING: Final = "on ~* &* +@all"
_LAST_LOOK_S: Final = 0.5
"""The read timeout for the ACL LOG of an ending server; a frozen server does not answer."""


def user_lines(password: str | None = None, *, prefixes: tuple[str, ...] = ("",)) -> list[str]:
    """Return the users as lines of a server's configuration; ``password``: of the user ``default``.

    ``prefixes``: of the keys of the shards in a cluster.
    """
    return [
        f"user default {' '.join(_default(password, prefixes))}",
        f"user {ALL_RIGHTS} {_EVERYTHING} >{PASSWORD}",
        *(f"user {name_of(role.name)} {' '.join(role.rules_for(*prefixes))} >{PASSWORD}" for role in ROLES.values()),
    ]


def name_of(role: str) -> str:
    """Return the name of a role's user."""
    return f"role-{role}"


def as_user(url: str, user: str) -> str:
    """Return the URL with the credentials of a user of this module in place of any others."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{quote(user)}:{PASSWORD}@{rest.rpartition('@')[2]}"


def as_role(url: str, role: str) -> str:
    """Return the URL with the credentials of a role's user."""
    return as_user(url, name_of(role))


def credentials(role: str) -> dict[str, str]:
    """Return the entry of config/redis.yml of a shard whose processes have the rights of a role."""
    return {"username": name_of(role), "password": PASSWORD}


def with_all_rights(url: str) -> str:
    """Return the URL for programs without a role: the test itself, another program."""
    return as_user(url, ALL_RIGHTS)


def taken_refusals(client: "Redis") -> list[str]:
    """Remove the entries of a server's ACL LOG and return them: the user, the refused right, and the place."""
    found = cast("list[dict[str, Any]]", client.acl_log())
    client.acl_log_reset()
    return ["{username} {object} ({reason}, {context})".format_map(_as_text(one)) for one in found]


def _as_text(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry as text: redis-py 8.0 leaves the values as bytes."""
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in entry.items()}


def lacking(refused: Iterable[str]) -> list[str]:
    """Return the refusals of rights that a role should have: all but the one that it lacks on purpose."""
    return [one for one in refused if not one.startswith(_KEPT_FROM_PRODUCERS)]


# Cached: each test gives `default` its rights again.
@cache
def _default(password: str | None, prefixes: tuple[str, ...] = ("",)) -> tuple[str, ...]:
    """Join the rules of several roles: Redis accepts ``on`` and ``-@all`` repeatedly."""
    together = dict.fromkeys((*WORKER.rules_for(*prefixes), *OPERATOR.rules_for(*prefixes)))
    return ("reset", f">{password}" if password else "nopass", *together)


@contextmanager
def narrowed(client: "Redis", *rules: str) -> Iterator[None]:
    """Remove rights from the user ``default`` of a server on a Unix socket within the block."""
    client.execute_command("ACL", "SETUSER", "default", *rules)
    try:
        yield
    finally:
        client.execute_command("ACL", "SETUSER", "default", *_default(None))


# Decision 175: the tests run under the published roles.
class GuardedServer(EmbeddedServer):
    """A server that remembers the refusals to its users, over restarts too."""

    def __init__(self, data_dir: Path, *, binary: Path | None = None) -> None:
        super().__init__(data_dir, binary=binary)
        self._noted: list[str] = []

    def open(self, name: str = "tests", *, read_timeout_s: float = COMMAND_TIMEOUT_S) -> "Redis":
        """Return a client with all rights."""
        return open_client(Endpoint(with_all_rights(self.url)), name=name, read_timeout_s=read_timeout_s)

    def empty(self, client: "Redis") -> None:
        """Remove all data, give ``default`` its rights, and forget the refusals; ``client`` has all rights."""
        self._noted.clear()
        with client.pipeline(transaction=False) as pipe:
            pipe.flushall()
            pipe.execute_command("ACL", "SETUSER", "default", *_default(urlsplit(self.url).password))
            pipe.acl_log_reset()
            pipe.execute()

    def refusals(self, client: "Redis | None" = None) -> list[str]:
        """Return the refusals since it was emptied: see ``taken_refusals``; ``client``: has all rights, and saves a connection."""
        if client is not None and self.running:
            self._noted += taken_refusals(client)
        elif self.running:
            self._note(COMMAND_TIMEOUT_S)
        return list(self._noted)

    def _note(self, patience_s: float) -> None:
        with self.open(read_timeout_s=patience_s) as client:
            self._noted += taken_refusals(client)

    def _configure(self) -> str:
        url = super()._configure()
        with (self.data_dir / "server.conf").open("a") as settings:
            settings.writelines(f"{line}\n" for line in user_lines(urlsplit(url).password))
        return url

    def _terminate(self, how: signal.Signals) -> None:
        if self._process and self.running:
            with suppress(RedisError, RuntimeError):
                self._note(_LAST_LOOK_S)
        super()._terminate(how)
