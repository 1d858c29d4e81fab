"""What the processes of a case tell by other means than the framework: a line per note in a file that all inherit.

Each note is one ``write`` to a file opened for appending, so a process that is killed leaves whole notes only.
"""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "accepted",  # the push returned, or another producer wrote it
    "doubted",  # the push failed, and the job may be in
    "refused",  # the push failed, and the job is surely not in
    "begun",
    "ended",
    "failed",
    "spoilt",  # it ran with other arguments than it was pushed with
    "mourned",  # a death handler was told
    "sent",  # a numbered command, about to leave
    "wrong",  # what must not happen, in words
]


@dataclass(frozen=True)
class Note:
    """``about`` is a job's serial, or the number of a command; ``words`` say the rest."""

    kind: str
    about: int
    words: str


class JobNotes:
    """One file for all cases, emptied before each."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)

    def clear(self) -> None:
        """A new case begins."""
        os.ftruncate(self._descriptor, 0)

    def note(self, kind: Kind, about: int, words: str = "") -> None:
        """The note is in the file when this returns."""
        os.write(self._descriptor, f"{kind}\t{about}\t{words}".replace("\n", " | ").encode() + b"\n")

    def read(self) -> list[Note]:
        """All notes of this case, in order."""
        text = os.pread(self._descriptor, 1 << 24, 0).decode()
        return [
            Note(kind, int(about), words) for kind, about, words in (line.split("\t", 2) for line in text.splitlines())
        ]


def count(notes: list[Note], *kinds: Kind) -> Counter[int]:
    """How many notes of these kinds there are about each job."""
    return Counter(note.about for note in notes if note.kind in kinds)
