"""Test signals that arrive while a process ends."""

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
