"""Run a child without a worker, which starts in milliseconds. Files in its folder control its shared state.

``mode``: serve, refuse (status 3), hang (never ready). ``hold``: a draining child ends when this file is removed.
``deaf``: the child ignores TERM.
"""

import mmap
import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
mode = (folder / "mode").read_text()
if mode == "refuse":
    sys.exit(3)
cells = memoryview(mmap.mmap(int(os.environ["FRAMEWORK_SHARED_STATE"]), 40)).cast("d")
received: list[int] = []
for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGTSTP, signal.SIGQUIT):
    signal.signal(number, lambda got, _frame: received.append(got))
while True:
    cells[2] = cells[3] = cells[4] = time.monotonic()
    if received and received[0] == signal.SIGTSTP:
        cells[0] = 2
        received.pop(0)
    elif signal.SIGTERM in received and not (folder / "deaf").exists():
        sys.exit(0)
    elif signal.SIGUSR2 in received:
        cells[0] = 3
        if not (folder / "hold").exists():
            sys.exit(0)
    elif mode == "serve" and not cells[0]:
        cells[0] = 1
    time.sleep(0.005)
