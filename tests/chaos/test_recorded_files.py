"""Test the reading of the servers' files by ``scripts/chaos``: forgotten pushes and ends, and the holders of a job."""

import pytest

from tests.servers.recorded import RecordedServer


@pytest.fixture
def recorded(short_path):
    """Return a running server that keeps all its writes."""
    with RecordedServer(short_path / "recorded") as server:
        yield server


# --- the settings of the server


def kept_settings(server):
    """Return the settings of the file, and whether a client set anything."""
    with server.open() as client:
        names = ("auto-aof-rewrite-percentage", "aof-timestamp-enabled")
        values = [client.config_get(name)[name] for name in names]
        return values, "cmdstat_config|set" in client.info("commandstats")


def test_recorded_server_has_settings_from_first_moment(recorded):
    assert kept_settings(recorded) == (["0", "yes"], False)
    recorded.kill()
    recorded.start()
    assert kept_settings(recorded) == (["0", "yes"], False)
