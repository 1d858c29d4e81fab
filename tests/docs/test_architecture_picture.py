"""Test that the picture of the architecture is as the imports are."""

import subprocess
import sys

from tests.harness import ROOT


def test_picture_of_the_architecture_is_current():
    command = [sys.executable, str(ROOT / "scripts" / "architecture"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
