"""Run a server that keeps its whole history: ``scripts/prove history`` replays its append-only file."""

import shutil
import time

from tests.servers.guarded import GuardedServer

_WRITTEN_S = 20.0
_SETTINGS = {"auto-aof-rewrite-percentage": "0", "aof-timestamp-enabled": "yes"}


class RecordedServer(GuardedServer):
    """A server that never rewrites its append-only file, and writes the time into it."""

    def start(self) -> None:
        super().start()
        with self.open("recorded") as client:
            for name, value in _SETTINGS.items():
                client.config_set(name, value)

    def begin(self) -> None:
        """Start with an empty history and no data: one round, one history."""
        self.stop()
        shutil.rmtree(self.data_dir / "appendonlydir", ignore_errors=True)
        self.start()

    def written(self) -> None:
        """Return when every answered write is in the file: with a slow fsync a server holds it back for up to 2 s."""
        deadline = time.monotonic() + _WRITTEN_S
        with self.open("recorded") as client:
            while client.info("persistence")["aof_buffer_length"] and time.monotonic() < deadline:
                time.sleep(0.01)
