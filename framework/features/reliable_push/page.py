"""The pushes that producers of this machine keep in files. Operators push those of ended processes again here."""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterable, Sequence

from framework.admin.audit import audited
from framework.admin.port import current
from framework.admin.statistics import server_times
from framework.errors import UnsafeFileError
from framework.features.reliable_push.kept_files import KeptFile, KeptFiles, KeptJobs
from framework.features.reliable_push.reliable_push import ReliablePush, open_reliable_push
from framework.features.reliable_push.replay import ReplayProgress
from framework.features.reliable_push.settings import ReliablePushSettings
from framework.pages.forms import Form
from framework.pages.page import Action, Page, Preview
from framework.pages.shard_action import SAMPLE
from framework.pages.view import Facts, View
from framework.shard.shard import Shard
from framework.text import Sentence, format_count, joined

_MOST_FILES = 100


class ResendPushes(Action):
    """Push the jobs of ended processes again: ``pushes replay``, for the shards on which the caller may act."""

    name = "replay"
    label = "Resend"

    async def preview(self, view: View, form: Form) -> Preview:  # noqa: ARG002 - it has no fields
        """Return the jobs by shard, and their files."""
        kept = await self._kept(view)
        jobs = Counter[str]()
        for _, found in kept:
            for (shard, _), one in found.items():
                jobs[shard] += one.jobs
        shards = [
            Sentence("{shard}: {jobs}", shard=shard, jobs=format_count(count, "job"))
            for shard, count in sorted(jobs.items())
        ]
        files = [
            Sentence(
                "{file} of {process}: {jobs:,}",
                file=one.path.name,
                process=one.process,
                jobs=_jobs_of(found.values()),
            )
            for one, found in kept
        ]
        return Preview(
            Sentence("Resend {jobs} of ended processes?", jobs=format_count(jobs.total(), "job")),
            jobs.total(),
            [*shards, *files][:SAMPLE],
            Sentence(
                "They are pushed in the order of their pushes. Those that Redis has already are not pushed again. Jobs of "
                "running processes are left to these, and jobs of a shard that does not answer stay in their file."
            ),
        )

    async def apply(self, view: View, form: Form) -> str:  # noqa: ARG002 - it has no fields
        """Replay the files, shard by shard."""
        shards = {shard for _, found in await self._kept(view) for shard, _ in found}
        kept = open_reliable_push(ReliablePushSettings.of(view.installation.settings), current().shards)
        try:
            done = await view.each(lambda name: _replay(kept, view.shards[name]), shards)
        finally:
            await asyncio.to_thread(kept.close)
        left = sum(_jobs_of(found.values()) for _, found in await self._kept(view))
        texts = [
            Sentence(
                "{name}: {jobs} pushed, {found:,} in Redis already",
                name=name,
                jobs=format_count(one.written, "job"),
                found=one.found,
            )
            for name, one in done.items()
        ]
        return joined([*texts, Sentence("{jobs} left", jobs=format_count(left, "job", "is"))])

    async def _kept(self, view: View) -> list[tuple[KeptFile, dict[tuple[str, str], KeptJobs]]]:
        """Return the files of ended processes, each with its jobs that the caller may push."""
        files = await asyncio.to_thread(KeptFiles().read, _settings(view).pushes_dir)
        found = [
            (
                one,
                {key: jobs for key, jobs in one.kept.items() if key[0] in view.shards and view.may("operate", key[0])},
            )
            for one in files
            if not one.is_running
        ]
        return [(one, kept) for one, kept in found if kept]


class KeptPushesPage(Page):
    """Show each file with the jobs in it."""

    name = "pushes"
    path = "/pushes"
    title = "Kept pushes"
    menu = "jobs"
    of_jobs = True
    mends = ("kept_pushes",)
    actions = (ResendPushes(),)

    def __init__(self) -> None:
        self._files = KeptFiles()

    async def read(self, view: View) -> Facts:
        """Read the files of the folder, and ask each shard whether it answers."""
        settings, problem, files = _settings(view), "", list[KeptFile]()
        try:
            files = await asyncio.to_thread(self._files.read, settings.pushes_dir, _MOST_FILES)
        except (UnsafeFileError, OSError) as error:
            problem = str(error)
        await view.each(server_times)
        rows = [row for one in files if (row := _row(view, one)) is not None]
        return {
            "host": socket.gethostname(),
            "folder": str(settings.pushes_dir),
            "is_enabled": settings.reliable_push.enabled,
            "problem": problem,
            "jobs": sum(row["jobs"] for row in rows),
            "files": rows,
        }


def _settings(view: View) -> ReliablePushSettings:
    return ReliablePushSettings.of(view.installation.settings)


def _replay(kept: ReliablePush, shard: Shard) -> ReplayProgress:
    def step(shard: Shard) -> ReplayProgress:
        try:
            return kept.replay(shard.name)
        except OSError as error:
            raise ValueError(
                Sentence("the files of kept pushes cannot be written: {reason}", reason=error.strerror or error)
            ) from error

    return audited("pushes replay", step, {}, lambda one: one.written)(shard)


def _jobs_of(kept: Iterable[KeptJobs]) -> int:
    return sum(one.jobs for one in kept)


def _row(view: View, one: KeptFile) -> Facts | None:
    """Return what the caller may see of a file; ``None`` if it has jobs of other shards and classes only."""
    seen = {
        key: jobs
        for key, jobs in one.kept.items()
        if key[0] in view.shards and view.may("read", key[0], key[1] or None)
    }
    if not seen and (one.kept or not any(view.may("read", shard) for shard in view.shards)):
        return None
    return {
        "file": one.path.name,
        "process": one.process,
        "is_running": one.is_running,
        "shards": sorted({shard for shard, _ in seen}),
        "jobs": _jobs_of(seen.values()),
        "classes": _classes(seen.items()),
        "oldest_at": min((jobs.oldest_at for jobs in seen.values()), default=None),
        "bytes": one.size,
        "problem": one.problem,
    }


def _classes(kept: Iterable[tuple[tuple[str, str], KeptJobs]]) -> Sequence[Facts]:
    jobs = Counter[str]()
    for (_, worker), one in kept:
        jobs[worker] += one.jobs
    return [{"class": worker, "jobs": count} for worker, count in jobs.most_common()]
