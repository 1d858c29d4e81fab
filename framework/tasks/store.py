"""Join the database of tasks, its writer and its spool. Loads SQLAlchemy."""

from typing import NamedTuple

from framework.declare.job_option import application_fields
from framework.features.encryption.settings import EncryptionSettings
from framework.features.tasks.settings import TaskSettings
from framework.payloads.signatures import payload_signatures
from framework.payloads.stored_state import StateSignatures, state_signatures
from framework.settings.model import CoreSettings
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
    state_signatures: StateSignatures
    """Sign and check what the spool keeps."""

    def recorder_of(self, shard: str) -> EventRecorder:
        """Return the recorder of a worker process of this shard."""
        return self.recorder.of(shard)

    def close(self) -> None:
        """End the thread of the writer after its last batch, and close the connections."""
        self.writer.close()
        self.database.dispose()


def open_store(settings: CoreSettings, shards: Shards, url: str | None = None) -> TaskStore:
    """Return the store of the settings; ``url`` names another database. Opens no connection."""
    chosen, signatures = TaskSettings.of(settings), EncryptionSettings.of(settings).signatures
    database = TaskDatabase(url or chosen.tasks_url)
    state = state_signatures(signatures)
    writer = EventWriter(database, ShardSpool(shards, state), chosen.tasks.database_down)
    recorder = EventRecorder(
        writer,
        chosen.tasks.params,
        keeps_payloads=chosen.tasks.ledger != "none",
        # Another database is that of a test, whose jobs in memory are not signed.
        signatures=payload_signatures(signatures, application_fields) if url is None else None,
    )
    return TaskStore(database, writer, recorder, state)
