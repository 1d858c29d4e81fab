"""Record what happens in the processes of a case, in a file that all of them inherit, one note a line.

Each note is one ``write`` to a file opened for appending, so a killed process leaves complete notes only.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "accepted",  # the push returned, or another producer wrote it
    "doubted",  # the push failed, and the job may have been written
    "refused",  # the push failed, and the job was surely not written
    "begun",
    "ended",
    "failed",
    "changed",  # it ran with other arguments than it was pushed with
    "death handled",  # a death handler was called
    "sent",  # a numbered command, about to leave
    "wrong",  # a violation, with its description
]


@dataclass(frozen=True)
class Note:
    """One note. ``about`` is a job's serial, or the number of a command; ``words`` is the rest."""

    kind: str
    about: int
    words: str


class JobNotes:
    """One file for all cases, emptied before each."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def clear(self) -> None:
        """Start a new case."""
        os.ftruncate(self._descriptor, 0)

    def note(self, kind: Kind, about: int, words: str = "") -> None:
        """Write the note; it is in the file when this returns."""
        os.write(self._descriptor, f"{kind}\t{about}\t{words}".replace("\n", " | ").encode() + b"\n")

    def read(self) -> list[Note]:
        """Return all notes of this case, in order."""
        text = os.pread(self._descriptor, 1 << 24, 0).decode()
        return [
            Note(kind, int(about), words) for kind, about, words in (line.split("\t", 2) for line in text.splitlines())
        ]


def count(notes: list[Note], *kinds: Kind) -> Counter[int]:
    """Return how many notes of these kinds exist for each job."""
    return Counter(note.about for note in notes if note.kind in kinds)
