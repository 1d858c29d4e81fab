"""Record the commands that each user of a server sends, from MONITOR.

A command line from inside a script belongs to the client of the last script call: Redis runs one command at a time.
"""

import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Self

from redis.exceptions import RedisError

from framework.store.rights import Role, commands_in
from tests.harness import until
from tests.lua import SCRIPTS
from tests.servers.guarded import GuardedServer, name_of


def _text(data: "str | bytes") -> str:
    return data.decode() if isinstance(data, bytes) else data


_TWO_WORDS = ("client",)
_LUA = "lua"
_BEGINNINGS = [
    (_text(code).partition("\n")[0], one.digest) for one in SCRIPTS.values() for code in (one.source, one.code)
]
"""The first line of each script, as sent, and its digest."""


class Census:
    """Records commands within its ``with`` block; the server listens on TCP, so each connection has its own port."""

    def __init__(self, server: GuardedServer) -> None:
        self._server = server
        self._workers_by_base: dict[str, str] = {}
        self.commands: defaultdict[str, set[str]] = defaultdict(set)
        self.digests: defaultdict[str, set[str]] = defaultdict(set)
        self.words: defaultdict[str, set[str]] = defaultdict(set)
        """Return every argument, keys included."""
        self._marks: set[str] = set()
        self._short_lived = ""

    def __enter__(self) -> Self:
        # A process that starts on a loaded machine sends nothing for some seconds: that must not end the reading.
        self._eye = self._server.open("census", read_timeout_s=600.0)
        self._asking = self._server.open("census-asks")
        self._monitor = self._eye.monitor()
        self._monitor.__enter__()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._asking.client_kill_filter(_type="normal", skipme=False)
        self._thread.join(10)
        self._eye.close()
        self._asking.close()

    @contextmanager
    def at_work(self, role: str) -> Iterator[None]:
        """Within the block, count commands of already closed connections for this role."""
        self.catch_up()
        self._short_lived = name_of(role)
        yield
        self.catch_up()
        self._short_lived = ""

    def catch_up(self) -> None:
        """Wait until all that was sent so far has been read."""
        mark = uuid.uuid4().hex
        with self._server.open("census-mark") as client:
            client.execute_command("ECHO", mark)
            until(lambda: mark in self._marks, "the census")

    def unused(self, role: Role) -> set[str]:
        """Return the rights that the role grants and its user did not use: ``+command``, ``~pattern``, or a script by name.

        A command that a script of the role contains counts as used where that script was sent: not every branch is driven here.
        """
        user = name_of(role.name)
        sent = [one for one in role.scripts if one.digest in self.digests[user]]
        commands = self.commands[user].union(*map(commands_in, sent))
        unsent = [one.name for one in role.scripts if one not in sent]
        patterns = (*role.keys, *role.optional_keys)
        return {
            *(f"+{name}" for name in (*role.commands, *role.optional) if name not in commands),
            *(f"~{one}" for one in patterns if not any(fnmatchcase(word, one) for word in self.words[user])),
            *(f"script {name}" for name in unsent),
        }

    def _read(self) -> None:
        sender = ""
        with suppress(RedisError, OSError):
            for line in self._monitor.listen():
                words = str(line["command"]).split(" ")
                if line["client_type"] == _LUA:
                    self.words[sender] |= set(words)
                    continue
                address = f"{line['client_address']}:{line['client_port']}"
                named = words[:2] == ["CLIENT", "SETNAME"]
                # A new connection sends SELECT, if any, then its name; it may have the port of a closed connection.
                if named or words[0] == "SELECT":
                    self._workers_by_base.pop(address, None)
                sender = self._user_at(address, words[2] if named else None)
                self._take_slot(sender, words)
                if words[0] == "ECHO":
                    self._marks.add(words[1])

    def _take_slot(self, user: str, words: list[str]) -> None:
        name = words[0].lower()
        self.commands[user].add("|".join(words[:2]).lower() if name in _TWO_WORDS else name)
        self.words[user] |= set(words)
        if name == "evalsha":
            self.digests[user].add(words[1])
        if name == "eval":  # where the server does not know it yet, or in a transaction
            text = " ".join(words[1:])
            self.digests[user] |= {digest for begin, digest in _BEGINNINGS if text.startswith(begin)}

    def _user_at(self, address: str, name: str | None = None) -> str:
        """Of a connection with this name, where that is known: another may have its port by now."""
        if address not in self._workers_by_base:
            found: list[Mapping[str, Any]] = self._asking.client_list()
            self._workers_by_base |= {
                one["addr"]: one["user"] for one in found if one["addr"] != address or name in (None, one["name"])
            }
            self._workers_by_base.setdefault(address, self._short_lived)
        return self._workers_by_base[address]
