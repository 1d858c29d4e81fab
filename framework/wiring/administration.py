"""Give ``framework.admin`` the shards and the settings of the process."""

from framework.admin.port import Access
from framework.wiring.client import process_client


def open_access() -> Access:
    """Return the shards and the settings of the client of this process. Opens no socket."""
    client = process_client.current()
    return Access(client.shards, client.settings)
