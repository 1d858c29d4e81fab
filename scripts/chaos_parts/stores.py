"""The Redis of one shard in a round: a server alone, perhaps behind a proxy; ``replicated`` has the one with a replica."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from redis import Redis

from chaos_parts.history import History
from chaos_parts.proxy import Proxy
from framework.store.connect import Endpoint, open_client
from framework.store.embedded import EmbeddedServer


class Store(ABC):
    """Runs as long as the ``with`` block lasts."""

    proxy: Proxy | None = None
    """What all workers and producers go through."""

    @abstractmethod
    def __enter__(self) -> Self:
        """Start it."""

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """Stop it; its files stay."""

    @property
    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """What config/redis.yml says about it."""

    @property
    @abstractmethod
    def client(self) -> Redis:
        """Ours, past the proxy, to whoever is master."""


class SingleStore(Store):
    """One server on a data folder."""

    def __init__(self, folder: Path, *, behind_a_proxy: bool = False) -> None:
        self.server = EmbeddedServer(folder)
        self.history = History(folder)
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
        return {"url": self.proxy.url if self.proxy is not None else self.server.url}

    @property
    def client(self) -> Redis:
        assert self._client is not None, "it was not started"  # noqa: S101
        return self._client

    def open_client(self) -> Redis:
        """Return another client, past the proxy."""
        return open_client(Endpoint(self.server.url), name="chaos")

    def cut_back(self, mark: bytes) -> frozenset[int]:
        """Let the server, which does not run, forget what it wrote after ``mark``; return the serials pushed in that."""
        return self.history.cut_back(mark)
