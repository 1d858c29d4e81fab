"""Name the address at which a process answers health checks."""

from typing import NamedTuple


class HealthAddress(NamedTuple):
    """Where to listen; ``source`` is the option or the setting that says so, for errors."""

    host: str
    port: int
    source: str = "--health-port"
