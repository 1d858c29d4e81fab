"""Run the Redis of one shard in a round: a single server, optionally behind a proxy; ``replicated`` has the one with a
replica.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from redis import Redis

from tests.chaos.rounds.history import Fetchers, Files
from tests.proofs.prover import Verdict, prove
from tests.servers.guarded import credentials, with_all_rights
from tests.servers.proxy import Proxy
from tests.servers.recorded import RecordedServer


class Store(ABC):
    """Runs as long as the ``with`` block lasts."""

    proxy: Proxy | None = None
    """The proxy of all workers and producers."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start it."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop it; its files stay."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Return its entry of config/redis.yml; with the rights of a producer, which a worker's environment replaces."""

    @property
    @abstractmethod
    def client(self) -> Redis:
        """Return the client of the round, past the proxy, to the current master."""

    @property
    @abstractmethod
    def marks(self) -> str:
        """Return the URL for end marks (``marks``); empty: none."""

    @abstractmethod
    def history(self) -> Verdict | None:
        """Replay its whole history; None when its files are incomplete."""

    @abstractmethod
    def fetchers(self) -> Fetchers:
        """Return the processes that fetched each job, by its files."""

    @abstractmethod
    def refusals(self) -> list[str]:
        """Return the rights that processes were refused: no role may lack one."""

    def witness(self) -> Callable[[], bool]:
        """Return the witness of a push, see ``producer.Witness``: none here."""
        return lambda: False


class SingleStore(Store):
    """One server on a data folder."""

    def __init__(self, folder: Path, *, behind_a_proxy: bool = False) -> None:
        self.server = RecordedServer(folder)
        self.files = Files(folder)
        self._behind_a_proxy = behind_a_proxy
        self._client: Redis | None = None

    def __enter__(self) -> Self:
        self.server.start()
        self._client = self.open_client()
        if self._behind_a_proxy:
            self.proxy = Proxy(self.server.url)
        return self

    def __exit__(self, *_: object) -> None:
        if self.proxy is not None:
            self.proxy.__exit__()
        self.client.close()
        self.server.stop()

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"url": self.proxy.url if self.proxy is not None else self.server.url, **credentials("producer")}

    @property
    def client(self) -> Redis:
        assert self._client is not None, "it was not started"  # noqa: S101
        return self._client

    def open_client(self) -> Redis:
        """Return another client, past the proxy."""
        return self.server.open("chaos")

    @property
    def marks(self) -> str:
        return f"main={with_all_rights(self.server.url)}"

    def refusals(self) -> list[str]:
        return self.server.refusals()

    def fetchers(self) -> Fetchers:
        self.server.written()
        return self.files.fetchers()

    def history(self) -> Verdict | None:
        self.server.written()
        return prove(self.server.data_dir)
