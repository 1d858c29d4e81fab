"""Define the port to the results of jobs: on the shards, or in the memory of a test. Pure."""

from concurrent.futures import Future
from typing import Protocol

from framework.declare.request import PushRequest
from framework.types import Jid


class ResultPort(Protocol):
    """The answers of the jobs that this process has called."""

    @property
    def caller(self) -> str:
        """The token of this process, which its calls carry; empty if no process waits."""
        ...

    def watch(self, jid: Jid, request: PushRequest) -> "Future[bytes]":
        """Return the future of the stored answer of a job. Looks once, then waits for a message of the shard."""
        ...

    def leave(self, jid: Jid, future: "Future[bytes]") -> None:
        """Wait for this answer no more."""
        ...
