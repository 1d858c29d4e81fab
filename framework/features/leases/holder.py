"""Describe the holder of a lease. Pure: modules of workers import it with their leases."""

from typing import NamedTuple


class LeaseHolder(NamedTuple):
    """The holder of a lease, and the seconds until the lease ends by itself."""

    holder: str
    left_s: float
