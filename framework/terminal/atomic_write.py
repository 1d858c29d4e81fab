"""Write generated files: all of them, or none."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from framework.exit_codes import EXIT_FAILED
from framework.terminal.output import echo


def write_all(texts: Mapping[Path, str]) -> None:
    """Write every file; a reader sees the old file or the new one, never a part.

    When a file cannot be written, all keep their old content, no temporary file remains, and the command ends with status 1.
    """
    temporary_files = {path: path.with_name(f"{path.name}.{os.getpid()}.tmp") for path in texts}
    path = Path()
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary_files[path].write_text(text, encoding="utf-8")
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
        # Renaming comes last: it needs no space, and the temporary files show that the folders are writable.
        for path in texts:
            temporary_files[path].replace(path)
    except OSError as error:
        for temporary in temporary_files.values():
            with suppress(OSError):
                temporary.unlink()
        echo(f"{display_path(path)} cannot be written: {error.strerror}. Nothing was changed.", err=True)
        sys.exit(EXIT_FAILED)


def display_path(path: Path) -> str:
    """Return the path as messages show it: relative when it is below the working directory."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
