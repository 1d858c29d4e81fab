"""Read the frames of all threads while garbage collections are due."""

import subprocess
import sys

COLLECTING = """
import gc, threading
from framework.telemetry.stacks import current_frames

class Cycle:
    def __init__(self):
        self.me, self.local = self, threading.local()
        self.local.value = 1

def descend(calls):
    if calls:
        return descend(calls - 1)
    for _ in range(3):
        Cycle()
    return current_frames()

for round_ in range(200):
    gc.disable()
    for _ in range(5):
        Cycle()
    gc.set_threshold(5 if round_ % 2 else 1 + round_ % 50, 1, 1)
    gc.enable()
    thread = threading.Thread(target=descend, args=(round_ % 200,))
    thread.start()
    thread.join()
    assert gc.isenabled()
"""


def test_frames_are_read_while_collections_are_due():
    """On Python 3.11.7 the plain call of ``sys`` stands still here, with the lock of the interpreter."""
    subprocess.run([sys.executable, "-c", COLLECTING], check=True, timeout=60)
