"""Write a file whole or not at all."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_file(path: Path) -> Generator[IO[bytes]]:
    """Open a file that becomes ``path`` at the end of the block. A reader, or a crash at any moment, finds the old file or the
    new one, never a part.

    Only this user may read the file, as ``mkstemp`` makes it: a report may say more than its source's owner would.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own for each writer: a second run of the same job may be writing at the same moment.
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, as ``atomic_file`` does."""
    with atomic_file(path) as file:
        file.write(text.encode("utf-8", errors="backslashreplace"))
