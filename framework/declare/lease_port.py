"""Define the port to exclusive leases: on a shard, or in the memory of a test. Pure."""

from typing import NamedTuple, Protocol


class LeaseHolder(NamedTuple):
    """The holder of a lease, and the seconds until the lease ends by itself."""

    holder: str
    left_s: float


class LeasePort(Protocol):
    """The exclusive leases of the application."""

    def obtain(self, shard: str, name: str, token: str, timeout_s: float) -> LeaseHolder | None:
        """Obtain the lease for ``token``; return its holder if another has it, else ``None``. One round trip."""
        ...

    def renew(self, shard: str, name: str, token: str, timeout_s: float) -> bool:
        """Let the lease end ``timeout_s`` from now on, 0 for at once; return false if ``token`` has it no more."""
        ...

    def holder(self, shard: str, name: str) -> LeaseHolder | None:
        """Return the holder of the lease; ``None`` if it is free."""
        ...
