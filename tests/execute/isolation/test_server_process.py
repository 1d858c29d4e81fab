"""Test the process that starts the processes of isolated jobs: it ends when its socket does."""

import os

from framework.execute.isolation.server_process import ServerProcess, wait_until_ready


def test_server_process_ends_with_its_socket_and_writes_nothing(capfd):
    server = ServerProcess()
    # The byte that says that it is ready stays unread, so the end of the socket is an error (ECONNRESET) at the other end.
    wait_until_ready(os.dup(server.open().fileno()), 60.0, lambda: False)
    process = server.popen
    server.close()
    assert process.wait(60) == 0
    assert capfd.readouterr() == ("", "")
