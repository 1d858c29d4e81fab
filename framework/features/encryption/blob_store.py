"""Keep bytes under names, outside of Redis: in a folder, or in a bucket with the API of S3."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol


class StoredBlob(NamedTuple):
    """Describe one stored blob."""

    name: str
    size: int
    modified: float
    """Epoch seconds, by the clock of the store."""


class BlobStore(Protocol):
    """Store blobs. Safe from any thread. Each method raises OSError if the store does not answer, or refuses."""

    can_vanish: bool
    """Whether an empty folder may appear in its place without an error, because a file system is no longer mounted."""

    def put(self, name: str, data: bytes) -> None:
        """Store a blob, and return when it is durable. A name that exists gets the new bytes."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a blob, ``None`` if there is none of this name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""
        ...

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        """Yield the blobs below ``prefix``, the part of their names before a slash."""
        ...
