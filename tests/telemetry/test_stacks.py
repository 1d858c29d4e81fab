"""Read the frames of all threads while garbage collections are due, and name their files without the folders of the host."""

import subprocess
import sys
from pathlib import Path

from framework.telemetry import stacks
from framework.telemetry.stacks import module_path

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


def test_module_path_is_below_the_folder_that_is_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), f"{tmp_path}/lib", "relative"])
    monkeypatch.chdir(tmp_path)
    found = [module_path(str(tmp_path / one)) for one in ("shop/jobs.py", "lib/shop.py", "library.py", "relative/x.py")]
    assert found == ["shop/jobs.py", "shop.py", "library.py", "x.py"]
    assert [module_path(one) for one in ("<frozen runpy>", "/other/x.py")] == ["<frozen runpy>", "/other/x.py"]
    monkeypatch.setattr(sys, "path", [str(Path(stacks.__file__).parents[2])])
    assert module_path(stacks.__file__) == "framework/telemetry/stacks.py"
