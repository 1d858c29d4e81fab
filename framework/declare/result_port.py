"""Define the port to the results of jobs: on the shards, or in the memory of a test. Pure."""

from concurrent.futures import Future
from typing import Protocol

from framework.declare.request import PushRequest
from framework.types import Jid, JobState


class ResultPort(Protocol):
    """The answers of the jobs that this process has called."""

    @property
    def caller(self) -> str:
        """The token of this process, which its calls carry; empty if no process waits."""
        ...

    def watch(self, jid: Jid, request: PushRequest) -> "Future[bytes]":
        """Return the future of the stored answer of a job. Looks once, then waits for a message of the shard."""
        ...

    def find(self, jid: Jid) -> "tuple[bytes | None, JobState]":
        """Return the stored answer of a job, ``None`` without one, and its state. One round trip to each shard.

        Raises ShardUnavailableError: a shard does not answer, and no other one has the answer.
        """
        ...

    def note(self, jid: Jid, request: PushRequest, facts: bytes, ttl_s: int) -> None:
        """Keep facts beside the result of a job that was pushed by this request. Raises ShardUnavailableError."""
        ...

    def noted(self, jid: Jid) -> bytes | None:
        """Return these facts, ``None`` without any. Raises ShardUnavailableError."""
        ...

    def leave(self, jid: Jid, future: "Future[bytes]") -> None:
        """Wait for this answer no more."""
        ...
