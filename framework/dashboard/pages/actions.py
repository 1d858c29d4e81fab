"""The changes that pages of the core offer: of queues, of jobs in sets, of processes."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import ClassVar, Literal

from framework import admin
from framework.admin import BulkResult, JobEntry, JobSet, MatchingJobs, Queue, WorkerProcess
from framework.admin.entries import EntryAction, JobSetKind
from framework.admin.explain import Explainer
from framework.admin.explain_reader import ShardSnapshot
from framework.admin.job_queue import unknown_queue_message
from framework.admin.job_record import JobFilter
from framework.admin.queue_reader import is_known
from framework.errors import UnknownNameError
from framework.feature import all_features
from framework.pages.forms import MINUTES, Form, lasts_s_of, word
from framework.pages.page import Action, Preview
from framework.pages.shard_action import SAMPLE
from framework.pages.view import View
from framework.text import Sentence, format_count, format_duration, joined
from framework.wire.resources import IDEMPOTENCY_KEY

_TIME_LIMIT_S = 20.0
_EXAMINED = 1_000
"""The jobs of a shard of which a preview counts what the action touches beside them."""
_LIMITS_NAMED = 5
"""The classes of a shard whose limits a preview names."""


class QueueAction(Action):
    """An action on the queue of the path, on the shards that the form names."""

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the shards with their jobs."""
        name, (known, others) = view.parameters["queue"], await self._shards(view, form)
        found = await view.each(lambda shard: Queue(name, shard).size, known)
        jobs = sum(found.values())
        sample = [
            Sentence("{name} on {shard}: {jobs}", name=name, shard=shard, jobs=format_count(size, "job"))
            for shard, size in found.items()
        ]
        return Preview(self.question(name), len(found), [*sample, *others], self.effect(jobs))

    async def apply(self, view: View, form: Form) -> str:
        """Act on each shard."""
        name, (known, others) = view.parameters["queue"], await self._shards(view, form)
        reason = word(form, "reason")
        found = await view.each(lambda shard: self.act(Queue(name, shard), reason), known)
        return joined([*_of_shards(found), *others]) or Sentence("no shard has answered")

    def question(self, name: str) -> str:
        """Return what is asked."""
        return Sentence("{label} {name}?", label=Sentence(self.label), name=name)

    def effect(self, jobs: int) -> str:
        """Return what follows for its jobs."""
        raise NotImplementedError

    def act(self, queue: Queue, reason: str) -> str:
        """Act on the queue of one shard, and return what was done."""
        raise NotImplementedError

    async def _shards(self, view: View, form: Form) -> tuple[list[str], list[str]]:
        """Return the shards that know the queue, and a text about each other one.

        Raises:
            UnknownNameError: all shards answer, and none knows it.
        """
        name, wanted = view.parameters["queue"], form.get("shard") or list(view.shards)
        allowed = [shard for shard in wanted if view.may(self.role, shard)]
        found = await view.each(lambda shard: is_known(view.shards[shard], name), allowed)
        if found and not any(found.values()) and not view.unanswered:
            raise UnknownNameError(unknown_queue_message(name, set()))
        others: list[str] = [
            Sentence("{shard} does not know the queue", shard=shard) for shard, known in found.items() if not known
        ]
        return [shard for shard, known in found.items() if known], others


class PauseQueue(QueueAction):
    """Let no process fetch from a queue."""

    name = "pause"
    label = "Pause queue"

    def effect(self, jobs: int) -> str:
        """Return what follows for its jobs."""
        return Sentence(
            "No process fetches from it until it is resumed. {jobs} and all later ones wait; pushes go on.",
            jobs=format_count(jobs, "job"),
        )

    def act(self, queue: Queue, reason: str) -> str:
        """Act on the queue of one shard, and return what was done."""
        queue.pause(reason=reason)
        return Sentence("{queue} is paused", queue=queue.name)


class UnpauseQueue(QueueAction):
    """Let processes fetch from a queue again."""

    name = "unpause"
    label = "Resume queue"

    def effect(self, jobs: int) -> str:
        """Return what follows for its jobs."""
        return Sentence("Processes that serve it fetch {jobs} from now on.", jobs=format_count(jobs, "job"))

    def act(self, queue: Queue, reason: str) -> str:
        """Act on the queue of one shard, and return what was done."""
        queue.unpause(reason)
        return Sentence("{queue} is no longer paused", queue=queue.name)


class ClearQueue(QueueAction):
    """Drop the jobs of a queue."""

    name = "clear"
    label = "Drop all jobs"
    role = "admin"
    is_harmful = True

    def question(self, name: str) -> str:
        """Return what is asked."""
        return Sentence("Drop all jobs that are in {name} now?", name=name)

    def effect(self, jobs: int) -> str:
        """Return what follows for its jobs."""
        return Sentence(
            "{jobs} never run. Their locks and slots become free. This cannot be undone.",
            jobs=format_count(jobs, "job"),
        )

    def act(self, queue: Queue, reason: str) -> str:  # noqa: ARG002 - the log has no reason for it
        """Act on the queue of one shard, and return what was done."""
        return Sentence("{jobs} dropped from {queue}", jobs=format_count(queue.clear(), "job"), queue=queue.name)


_EFFECTS: Mapping[EntryAction, str] = {
    "retry": Sentence(
        "They go to their queues now, and run once a process fetches them. Limits and pauses hold as always."
    ),
    "enqueue_now": Sentence("They go to their queues before they are due. Limits and pauses hold as always."),
    "requeue": Sentence("They go to their queues for one more run."),
    "kill": Sentence(
        "They go to the dead set, and run no more unless they are retried there. No death handler is called."
    ),
    "delete": Sentence(
        "They never run, and their locks become free. For 24 hours they can be brought back on the page Deleted."
    ),
}

_TO_QUEUES: Collection[EntryAction] = ("retry", "enqueue_now", "requeue")

_PAST: Mapping[EntryAction, str] = {
    "retry": Sentence("moved to their queues"),
    "enqueue_now": Sentence("moved to their queues"),
    "requeue": Sentence("moved to their queues"),
    "kill": Sentence("moved to the dead set"),
    "delete": Sentence("deleted"),
    "reschedule": Sentence("moved to a new time"),
}


class SetAction(Action):
    """An action on jobs of one set: those that were selected (``job``), or all that match the filters of the form (``all``)."""

    def __init__(self, kind: JobSetKind, verb: EntryAction, label: str) -> None:
        self._kind: JobSetKind = kind
        self._verb: EntryAction = verb
        self.name = verb
        self.label = label
        self.is_harmful = verb == "delete"

    async def preview(self, view: View, form: Form) -> Preview:
        """Count the jobs, and name some."""
        touched = _Touched()
        if word(form, "all"):
            found = await view.each(lambda shard: self._count(self._matching(view, shard, form)))
            count, entries = sum(one[0] for one in found.values()), [job for one in found.values() for job in one[1]]
            which = Sentence("all jobs that match") if _filters(form) else Sentence("all jobs of the set")
        else:
            entries = [one for listed in (await self._selected(view, form)).values() for one in listed]
            count, which = len(entries), Sentence("the selected jobs")
        question = Sentence(
            "{label}: {which}, {jobs}?", label=Sentence(self.label), which=which, jobs=format_count(count, "job")
        )
        for one in entries:
            touched.add(one)
        limits = await _limits_met(view, entries) if self._verb in _TO_QUEUES else ""
        effect = joined(filter(None, (self._effect(form), touched.text(count), limits)), " ")
        return Preview(question, count, list(map(_shown, entries[:SAMPLE])), effect)

    async def apply(self, view: View, form: Form) -> str:
        """Act on the jobs, in bounded steps."""
        if not word(form, "all"):
            entries = [one for listed in (await self._selected(view, form)).values() for one in listed]
            acted = await view.each(lambda shard: [self._act(one, form) for one in entries if one.shard == shard])
            done = sum(sum(one) for one in acted.values())
            gone = len(entries) - done
            texts: list[str] = [Sentence("{jobs} {done}", jobs=format_count(done, "job"), done=_PAST[self._verb])]
            return joined([*texts, Sentence("{gone:,} had gone before", gone=gone)] if gone else texts)
        results = await view.each(lambda shard: self._act_on_all(self._matching(view, shard, form), form))
        texts = _of_shards({shard: _told(one, self._verb) for shard, one in results.items()})
        return joined(texts) or Sentence("no shard has answered")

    async def _selected(self, view: View, form: Form) -> dict[str, list[JobEntry]]:
        """Return the selected jobs that the caller may act on. The set of a shard is scanned once for all of them."""
        wanted: dict[str, set[str]] = {}
        for one in form.get("job", ()):
            shard, _, jid = one.partition(" ")
            wanted.setdefault(shard, set()).add(jid)
        if not wanted:
            raise ValueError(Sentence("No job is selected: select some, or choose all that match."))

        def find(shard: str) -> list[JobEntry]:
            found = MatchingJobs(self._kind, shard, JobFilter(jids=frozenset(wanted[shard])))
            return [one for one in found if view.may(self.role, shard, one.worker)]

        return await view.each(find, wanted)

    def _matching(self, view: View, shard: str, form: Form) -> MatchingJobs | None:
        """Return the jobs that match; ``None`` if the caller may not act on these.

        Raises:
            ValueError: the caller may act on the jobs of some feature categories only, and no class is chosen.
        """
        filters = _filters(form)
        cls = filters.get("class")
        if not view.may(self.role, shard, cls):
            if cls is None:
                raise ValueError(Sentence("You may act on the jobs of some classes only: choose a class first."))
            return None
        return JobSet(self._kind, shard).where(
            cls=cls, queue=filters.get("queue"), error=filters.get("error"), tag=filters.get("tag")
        )

    @staticmethod
    def _count(jobs: MatchingJobs | None) -> tuple[int, list[JobEntry]]:
        return (0, []) if jobs is None else (jobs.count(), list(islice(jobs, _EXAMINED)))

    def _effect(self, form: Form) -> str:  # noqa: ARG002 - for the subclass
        return _EFFECTS[self._verb]

    def _act_on_all(self, jobs: MatchingJobs | None, form: Form) -> BulkResult:  # noqa: ARG002 - for the subclass
        if jobs is None:
            return BulkResult()
        match self._verb:
            case "retry":
                return jobs.retry(time_limit=_TIME_LIMIT_S)
            case "enqueue_now":
                return jobs.enqueue_now(time_limit=_TIME_LIMIT_S)
            case "requeue":
                return jobs.requeue(time_limit=_TIME_LIMIT_S)
            case "kill":
                return jobs.kill(time_limit=_TIME_LIMIT_S)
            case _:
                return jobs.delete(time_limit=_TIME_LIMIT_S)

    def _act(self, entry: JobEntry, form: Form) -> bool:  # noqa: ARG002 - for the subclass
        match self._verb:
            case "retry":
                return entry.retry()
            case "enqueue_now":
                return entry.enqueue_now()
            case "requeue":
                return entry.requeue()
            case "kill":
                return entry.kill()
            case _:
                return entry.delete()


class RunLater(SetAction):
    """Give jobs of one set a new time, some minutes from now."""

    fields: ClassVar = (MINUTES,)

    def __init__(self, kind: JobSetKind) -> None:
        super().__init__(kind, "reschedule", "Run later")

    def _effect(self, form: Form) -> str:
        return Sentence(
            "Each is due {time} from now, instead of at the time that it has.", time=format_duration(lasts_s_of(form))
        )

    def _act_on_all(self, jobs: MatchingJobs | None, form: Form) -> BulkResult:
        return BulkResult() if jobs is None else jobs.reschedule(_delay_of(form), time_limit=_TIME_LIMIT_S)

    def _act(self, entry: JobEntry, form: Form) -> bool:
        return entry.reschedule(_delay_of(form))


def _delay_of(form: Form) -> timedelta:
    return timedelta(seconds=lasts_s_of(form))


class ProcessAction(Action):
    """A signal to processes: those of the form."""

    def __init__(self, verb: Literal["quiet", "stop"], label: str, effect: str) -> None:
        self._verb, self._effect = verb, effect
        self.name = verb
        self.label = label

    async def preview(self, view: View, form: Form) -> Preview:
        """Return the processes that are chosen."""
        found = await self._chosen(view, form)
        names = [Sentence("{identity} on {shard}", identity=one.identity, shard=one.shard) for one in found]
        return Preview(
            Sentence(
                "{label}: {processes}?", label=Sentence(self.label), processes=format_count(len(found), "process")
            ),
            len(found),
            names[:SAMPLE],
            self._effect,
        )

    async def apply(self, view: View, form: Form) -> str:
        """Leave a signal for each process."""
        chosen = await self._chosen(view, form)

        def ask(shard: str) -> int:
            mine = [one for one in chosen if one.shard == shard and not one.embedded]
            for one in mine:
                one.quiet() if self._verb == "quiet" else one.stop()
            return len(mine)

        done = await view.each(ask)
        return Sentence(
            "{processes} asked; each reads it within ten seconds", processes=format_count(sum(done.values()), "process")
        )

    async def _chosen(self, view: View, form: Form) -> list[WorkerProcess]:
        wanted = set(form.get("process", ()))
        if not wanted:
            raise ValueError(Sentence("No process is selected."))
        found = await view.each(admin.processes)
        listed = [one for processes in found.values() for one in processes]
        return [one for one in listed if f"{one.shard} {one.identity}" in wanted and view.may(self.role, one.shard)]


class _Touched:
    """Count what an action on jobs touches beside them: their batches and the like, locks, and classes."""

    def __init__(self) -> None:
        self._nouns = {name: noun for one in all_features() for name, noun in one.job_groups.items()}
        self._groups: dict[str, set[str]] = {}
        self._jobs = Counter[str]()
        self._locks = self._seen = 0
        self._classes: set[str] = set()

    def add(self, job: JobEntry) -> None:
        payload = job.payload
        self._seen += 1
        self._classes.add(job.display_class)
        self._locks += IDEMPOTENCY_KEY in payload
        for name, noun in self._nouns.items():
            if isinstance(group := payload.get(name), str):
                self._groups.setdefault(noun, set()).add(f"{job.shard} {group}")
                self._jobs[noun] += 1

    def text(self, count: int) -> str:
        """Return one sentence about ``count`` jobs, of which these were looked at; empty if they touch nothing."""
        parts = [
            Sentence("{jobs:,} belong to {groups}", jobs=self._jobs[noun], groups=format_count(len(found), noun))
            for noun, found in self._groups.items()
        ]
        parts += [Sentence("{locks:,} may hold locks", locks=self._locks)] if self._locks else []
        if not parts:
            return ""
        which = (
            Sentence("Of them") if self._seen >= count else Sentence("Of the first {seen:,} of them", seen=self._seen)
        )
        return Sentence(
            "{which}, of {classes}: {parts}.",
            which=which,
            classes=format_count(len(self._classes), "class"),
            parts=joined(parts, ", "),
        )


async def _limits_met(view: View, jobs: Sequence[JobEntry]) -> str:
    """Return the limits of the classes that most of these jobs have, and their free slots; empty without any."""
    classes: dict[str, Counter[str]] = {}
    for one in jobs:
        classes.setdefault(one.shard, Counter())[one.worker] += 1

    def read(shard: str) -> list[str]:
        explainer = Explainer(ShardSnapshot(view.shards[shard].client, shard), view.installation.classes)
        limits = {name: explainer.limit_of(name) for name, _ in classes[shard].most_common(_LIMITS_NAMED)}
        return [
            Sentence(
                "{jobs} of {name} on {shard} ({usage} slots taken)",
                jobs=format_count(classes[shard][name], "job"),
                name=name,
                shard=shard,
                usage=one.usage,
            )
            for name, one in limits.items()
            if one.limit
        ]

    found = [text for texts in (await view.each(read, classes)).values() for text in texts]
    if not found:
        return ""
    return Sentence("Jobs of a class with a limit wait until a slot is free: {limits}.", limits=joined(found, ", "))


def _filters(form: Form) -> dict[str, str]:
    return {name: text for name in ("class", "queue", "error", "tag") if (text := word(form, name))}


def _shown(job: JobEntry) -> str:
    return Sentence(
        "{worker} {jid} on {shard}", worker=job.display_class or Sentence("malformed"), jid=job.jid, shard=job.shard
    )


def _told(result: BulkResult, verb: EntryAction) -> str:
    parts = [Sentence("{jobs} {done}", jobs=format_count(result.done, "job"), done=_PAST[verb])]
    parts += [
        Sentence("{count:,} stay as they were ({reason})", count=count, reason=reason)
        for reason, count in result.refused.items()
    ]
    parts += [] if result.completed else [Sentence("the time has ended before the last job: do it again")]
    return joined(parts, ", ")


def _of_shards(done: Mapping[str, str]) -> list[str]:
    """Return what was done on each shard."""
    return [Sentence("{shard}: {done}", shard=shard, done=one) for shard, one in done.items()]
