"""Find pushes that producers of this host keep in files, although the shard answers."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.features.reliable_push.push_file import is_locked, push_files, read_file
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.text import Sentence, format_count, format_duration, join_names

_MOST_FILES = 100
_MOST_NAMES = 3
_REPLAYED_WITHIN_S = 60.0


class KeptPushCauses(CauseReader):
    """Find the files of producers that have ended, or that are refused."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "kept_pushes": ("PushesKept", "ClassNotDequeued", "ShardAway")
    }

    def causes(self) -> Iterator[Cause]:
        folder = ReliablePushSettings.of(self.facts.installation.settings).pushes_dir
        jobs, files, oldest, running = 0, list[str](), time.time(), 0
        for path in push_files(folder)[:_MOST_FILES] if folder.is_dir() else ():
            try:
                kept = [one for one in read_file(path).entries if one.destination[0] == self.facts.shard]
                is_running = is_locked(path)
            except OSError:
                continue
            # A running producer replays its own file as soon as the shard answers.
            if kept and not (is_running and time.time() - min(one.kept_at for one in kept) < _REPLAYED_WITHIN_S):
                files.append(path.name)
                jobs += sum(one.jobs for one in kept)
                oldest = min(oldest, *(one.kept_at for one in kept))
                running += is_running
        if not files:
            return
        yield Cause(
            code="kept_pushes",
            shard=self.facts.shard,
            cause=Sentence(
                "{jobs} in files of producers on this host, and not in Redis", jobs=format_count(jobs, "job", "is")
            ),
            evidence=[
                Sentence(
                    "{folder}: {names}, the oldest push {time} ago",
                    folder=folder,
                    names=join_names(files, max_names=_MOST_NAMES),
                    time=format_duration(time.time() - oldest),
                ),
                Sentence(
                    "{producers} of these files still running; those of ended ones wait for a start",
                    producers=format_count(running, "producer"),
                ),
            ],
            remedy=remedy_command("pushes", "replay"),
            effect=Sentence(
                "{jobs} pushed in the order of their push, none twice", jobs=format_count(jobs, "job", "is")
            ),
            certainty=8.0,
            jobs=jobs,
        )
