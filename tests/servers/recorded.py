"""Run a server that keeps all its writes in its append-only file, which ``scripts/prove history`` replays."""

import shutil
import time

from tests.servers.guarded import GuardedServer

_WRITTEN_S = 20.0
_SETTINGS = {"auto-aof-rewrite-percentage": "0", "aof-timestamp-enabled": "yes"}


class RecordedServer(GuardedServer):
    """A server whose append-only file is never rewritten and contains times."""

    def begin(self) -> None:
        """Restart without data and with an empty append-only file."""
        self.stop()
        shutil.rmtree(self.data_dir / "appendonlydir", ignore_errors=True)
        self.start()

    def written(self) -> None:
        """Wait until the file contains every answered write: during a slow fsync a server delays writes by up to 2 s."""
        deadline = time.monotonic() + _WRITTEN_S
        with self.open("recorded") as client:
            while client.info("persistence")["aof_buffer_length"] and time.monotonic() < deadline:
                time.sleep(0.01)

    def _configure(self) -> str:
        # In the configuration: a server that gets them by CONFIG SET may rewrite its file before, at each of its starts.
        url = super()._configure()
        with (self.data_dir / "server.conf").open("a") as settings:
            settings.writelines(f"{name} {value}\n" for name, value in _SETTINGS.items())
        return url
