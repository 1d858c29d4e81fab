"""Join the database of tasks, its writer and its spool. Loads SQLAlchemy."""

from typing import NamedTuple

from framework.features.tasks.database import TaskDatabase
from framework.features.tasks.recorder import EventRecorder
from framework.features.tasks.settings import TaskSettings
from framework.features.tasks.spool import ShardSpool
from framework.features.tasks.writer import EventWriter
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.settings.model import CoreSettings
from framework.shard.shards import Shards
from framework.wire.protected import StateSignatures


class TaskStore(NamedTuple):
    """The database, the thread that writes to it, and the recorder in front."""

    database: TaskDatabase
    writer: EventWriter
    recorder: EventRecorder
    state_signatures: StateSignatures
    """Sign and check what the spool keeps."""

    def recorder_of(self, shard: str) -> EventRecorder:
        """Return the recorder of a worker process of this shard."""
        return self.recorder.of(shard)

    def close(self) -> None:
        """End the thread of the writer after its last batch, and close the connections."""
        self.writer.close()
        self.database.dispose()


def open_store(
    settings: CoreSettings, shards: Shards, protection: PayloadProtection, url: str | None = None
) -> TaskStore:
    """Return the store of the settings; ``url`` names another database. Opens no connection."""
    chosen, state = TaskSettings.of(settings), protection.state
    database = TaskDatabase(url or chosen.tasks_url)
    writer = EventWriter(database, ShardSpool(shards, state), chosen.tasks.database_down)
    recorder = EventRecorder(
        writer,
        chosen.tasks.params,
        keeps_payloads=chosen.tasks.ledger != "none",
        # Another database is that of a test, whose jobs in memory are not signed.
        protection=protection if url is None else NO_PROTECTION,
    )
    return TaskStore(database, writer, recorder, state)
