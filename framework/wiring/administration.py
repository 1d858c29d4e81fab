"""Give ``framework.admin`` and ``framework.tasks`` the shards and the settings of the process."""

from framework.admin.port import Access
from framework.features.tasks.access import TaskAccess
from framework.wiring.client import process_client


def open_access() -> Access:
    """Return the shards and the settings of the client of this process. Opens no socket."""
    client = process_client.current()
    return Access(client.shards, client.settings)


def open_task_access() -> TaskAccess:
    """Return the recorder, the shards and the settings of the client of this process. Opens no socket."""
    client = process_client.current()
    return TaskAccess(client.recorder, client.shards, client.settings)
