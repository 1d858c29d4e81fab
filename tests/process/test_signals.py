"""Test signals that arrive while a process ends."""

import os
import pty
import subprocess
import sys

_ENDS = """
import os, signal
from framework.process.signals import SignalQueue

def run():
    SignalQueue().install()

run()
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_signal_after_the_command_has_returned_writes_nothing():
    done = subprocess.run([sys.executable, "-c", _ENDS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_process_is_at_a_terminal_if_its_stdin_is_one():
    code = "from framework.process.signals import at_terminal; print(at_terminal())"
    leader, terminal = pty.openpty()
    try:
        for stdin, wanted in ((terminal, "True"), (subprocess.DEVNULL, "False")):
            done = subprocess.run(
                [sys.executable, "-c", code], stdin=stdin, stdout=subprocess.PIPE, text=True, check=True
            )
            assert done.stdout.strip() == wanted
    finally:
        os.close(leader)
        os.close(terminal)
