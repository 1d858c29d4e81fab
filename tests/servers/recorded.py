"""A server that keeps all it ever did: its append-only file is the history that ``scripts/prove history`` replays."""

import shutil
import time

from tests.servers.guarded import GuardedServer

_WRITTEN_S = 20.0
_SETTINGS = {"auto-aof-rewrite-percentage": "0", "aof-timestamp-enabled": "yes"}


class RecordedServer(GuardedServer):
    """Never rewrites its append-only file, and notes the time in it."""

    def start(self) -> None:
        super().start()
        with self.open("recorded") as client:
            for name, value in _SETTINGS.items():
                client.config_set(name, value)

    def begin(self) -> None:
        """Start anew, with an empty history and no data: one round, one history."""
        self.stop()
        shutil.rmtree(self.data_dir / "appendonlydir", ignore_errors=True)
        self.start()

    def written(self) -> None:
        """Return when all that was answered is in the file: beside a slow fsync a server holds it back for up to 2 s."""
        deadline = time.monotonic() + _WRITTEN_S
        with self.open("recorded") as client:
            while client.info("persistence")["aof_buffer_length"] and time.monotonic() < deadline:
                time.sleep(0.01)
