"""Test the process that starts the processes of isolated jobs: it ends when its socket does."""

import os
import signal
from contextlib import suppress

import pytest

from framework.features.isolation.server_process import ServerProcess, wait_until_ready


def test_server_process_ends_with_its_socket_and_writes_nothing(capfd):
    server = ServerProcess()
    # The byte that says that it is ready stays unread, so the end of the socket is an error (ECONNRESET) at the other end.
    wait_until_ready(os.dup(server.open().fileno()), 60.0, lambda: False)
    process = server.popen
    server.close()
    assert process.wait(60) == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("_", range(2))
def test_signals_at_the_end_of_the_server_write_nothing(capfd, _):
    server = ServerProcess()
    wait_until_ready(os.dup(server.open().fileno()), 60.0, lambda: False)
    process = server.popen
    server.forget()
    # As the system does when the thread that started it ends, and a supervisor to the whole group.
    with suppress(ProcessLookupError):
        while process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 0
    assert capfd.readouterr() == ("", "")
