"""``python -m framework``: the same commands as ``application-worker``."""

import sys
from pathlib import Path

from framework.cli.main import main
from framework.command_line import CONSOLE_SCRIPT, inherit_command_form

# ``python -m`` puts the working directory first. It goes to the end (``registry.load``), as with the console script.
if not sys.flags.safe_path and Path(sys.path[0]).resolve() == Path.cwd():
    del sys.path[0]
inherit_command_form()
main(prog_name=CONSOLE_SCRIPT)
