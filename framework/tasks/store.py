"""Join the database of tasks, its writer and its spool. Loads SQLAlchemy."""

from typing import NamedTuple

from framework.settings.model import Settings
from framework.shard.shards import Shards
from framework.tasks.database import TaskDatabase
from framework.tasks.recorder import EventRecorder
from framework.tasks.spool import ShardSpool
from framework.tasks.writer import EventWriter


class TaskStore(NamedTuple):
    """The database, the thread that writes to it, and the recorder in front."""

    database: TaskDatabase
    writer: EventWriter
    recorder: EventRecorder

    def recorder_of(self, shard: str) -> EventRecorder:
        """Return the recorder of a worker process of this shard."""
        return self.recorder.of(shard)

    def close(self) -> None:
        """End the thread of the writer after its last batch, and close the connections."""
        self.writer.close()
        self.database.dispose()


def open_store(settings: Settings, shards: Shards, url: str | None = None) -> TaskStore:
    """Return the store of the settings; ``url`` names another database. Opens no connection."""
    database = TaskDatabase(url or settings.tasks_url)
    writer = EventWriter(database, ShardSpool(shards), settings.tasks.database_down)
    recorder = EventRecorder(writer, settings.tasks.params, keeps_payloads=settings.tasks.ledger != "none")
    return TaskStore(database, writer, recorder)
