"""What is said of each difference: what is wrong, which of GitLab's release steps it is a part of, and what to write."""

from collections.abc import Sequence
from datetime import date
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.compat.arguments import Misfit, declared
from framework.compat.manifest import IN_FLIGHT, Entry, Parameter, Parameters

Code: TypeAlias = Literal[
    "added-without-default",
    "default-dropped",
    "removed",
    "reordered",
    "type-narrowed",
    "type-changed",
    "no-handler",
    "handler-dropped",
    "version-lowered",
    "lost-on-old",
    "vanished",
    "renamed-without-alias",
    "alias-dropped",
    "retirement-dropped",
    "queue-unserved",
    "shard-vanished",
    "change",
]

ADD = "add an argument: (1) at the end, with a default; (2) the next release passes it everywhere; (3) then the default can go"
DROP_DEFAULT = (
    "add an argument, step 3: the default goes once every push of a release has passed the argument, "
    "and no job without it is left"
)
REMOVE_ARGUMENT = (
    "remove an argument: (1) give it a default and ignore it; (2) the next release passes it nowhere; "
    "(3) it goes with the next major"
)
CHANGE = (
    "change meaning, type or order: raise version, keep the old code as perform_v<N>; deploy processes before producers"
)
RENAME_CLASS = (
    "rename a class: both names for a release (wire_name the old one, aliases the new one), then the old one as alias"
)
REMOVE_WORKER = (
    "remove a worker: (1) nothing pushes it any more, nor schedules it; (2) the class goes and is named in retired_workers; "
    "(3) the entry goes when scripts/retired says so"
)
MOVE_QUEUE = (
    "rename a queue: serve the old one and the new one; after the deploy, scripts/migrate_jobs queued --follow-rules; "
    "then stop serving the old one"
)
NEW_WORKER = "new worker: processes first; what pushes it comes a release later, or behind a flag"
PUSH_LATER = "add an argument, step 1 of 3: no push of this release passes it yet; the next one passes it everywhere"


class Finding(NamedTuple):
    """One difference: where (class and attribute), what, as a part of which release steps, and lines to write."""

    code: Code
    worker: str
    place: str
    message: str
    step: str = ""
    write: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """A deploy would break jobs; everything else is worth knowing."""
        return self.code != "change"

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message} [{self.code}]"]
        lines += [f"  step: {self.step}"] if self.fails else []
        lines += (f"  {'       ' if index else 'write: '}{line}" for index, line in enumerate(self.write))
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "write": list(self.write), "fails": self.fails}


def change(worker: str, entry: Entry, text: str, step: str = "") -> Finding:
    """Something that breaks nothing."""
    return Finding("change", worker, entry.place, text, step)


def misfit(
    worker: str, old: Entry, new: Entry, method: str, before: Parameters, after: Parameters, found: Misfit
) -> Finding:
    """Today's method refuses, or misreads, what that of the last release took."""
    place = f"{new.place}.{method}"
    if method != "perform":
        return Finding(found.fault, worker, place, found.text, CHANGE, (declared(method, before),))
    if found.fault == "added-without-default":
        return Finding(
            found.fault,
            worker,
            place,
            f"{found.text}: jobs in flight lack it",
            ADD,
            _with_default(after, found.parameter),
        )
    if found.fault == "default-dropped":
        message = f"{found.text}: jobs without it may be in flight"
        return Finding(
            found.fault,
            worker,
            place,
            message,
            DROP_DEFAULT,
            (declared(method, _as_it_was(before, after)), _settle(worker)),
        )
    if found.fault == "removed":
        message = f"{found.text}: jobs in flight that hold it would be refused"
        kept = tuple(
            one if one.rest else one.model_copy(update={"optional": True}) for one in _from(before, len(after))
        )
        return Finding(
            found.fault,
            worker,
            place,
            message,
            REMOVE_ARGUMENT,
            (declared(method, _joined(after, kept)), _settle(worker)),
        )
    return Finding(found.fault, worker, place, found.text, CHANGE, _raised(old.version, before, new.perform))


def no_handler(worker: str, new: Entry, version: int, before: Parameters, found: Sequence[Misfit]) -> Finding:
    """The version was raised, and nothing runs the jobs of the one before."""
    reasons = "; ".join(one.text for one in found)
    message = f"there is no perform_v{version}, and jobs of version {version} do not fit perform: {reasons}"
    return Finding(
        "no-handler", worker, f"{new.place}.version", message, CHANGE, (declared(f"perform_v{version}", before),)
    )


def handler_dropped(worker: str, old: Entry, new: Entry, version: int, *, fresh: bool) -> Finding:
    """A method for an older version went."""
    since = old.former_versions[version]
    if not fresh:
        return change(worker, new, f"perform_v{version} went; version {version} is pushed no longer since {since}")
    message = f"perform_v{version} went, and jobs of version {version} were pushed until {since}: {_last_until(since)}"
    return Finding(
        "handler-dropped",
        worker,
        f"{new.place}.perform_v{version}",
        message,
        CHANGE,
        (declared(f"perform_v{version}", old.handlers[version]), _settle(worker)),
    )


def version_lowered(worker: str, old: Entry, new: Entry) -> Finding:
    """Jobs in flight are newer than the class."""
    message = f"version is {new.version} and was {old.version}, of which jobs are in flight; version {new.version} was another"
    return Finding(
        "version-lowered",
        worker,
        f"{new.place}.version",
        message,
        CHANGE,
        (f"version = {old.version + 1}", declared(f"perform_v{old.version}", old.perform)),
    )


def processes_first(worker: str, old: Entry, new: Entry, *, lost: bool) -> Finding:
    """New jobs that meet a process of the last release fail there."""
    where = f"{new.place}.version"
    if not lost:
        text = f"version {new.version}, not {old.version}: its jobs fail in processes of the last release, and are tried again"
        return change(worker, new, text, CHANGE)
    message = (
        f"retry = {new.retry} and version {new.version}, not {old.version}: "
        f"a job that a process of the last release fetches fails there for good"
    )
    return Finding(
        "lost-on-old",
        worker,
        where,
        message,
        CHANGE,
        ("retry = 3  # for this release: jobs carry it, so the old processes keep to it",),
    )


def push_later(worker: str, new: Entry, added: Parameters) -> Finding:
    """Arguments that only today's code takes."""
    names = ", ".join(one.name for one in added) or "all that perform takes now"
    text = f"processes of the last release do not take {names}: see that no push of this release passes it yet"
    return change(worker, new, text, PUSH_LATER)


def vanished(worker: str, old: Entry) -> Finding:
    """No class runs its jobs."""
    message = f"there is no class for jobs of {worker}, and some may be left: they would fail as unknown"
    write = ("retired_workers:  # in config/application.yml", f'  "{worker}": "why it went"')
    return Finding("vanished", worker, old.place, message, REMOVE_WORKER, write)


def retired(worker: str, old: Entry) -> Finding:
    """Its jobs are dropped from now on."""
    text = "is retired: its jobs are dropped, also those that processes of the last release still push"
    return change(worker, old, text, REMOVE_WORKER)


def rename_without_alias(worker: str, old: Entry, heir: str, new: Entry) -> Finding:
    """A class vanished, and one much like it is new."""
    same = old.place == new.place
    what = f"its wire name was {worker} and is {heir}" if same else f"{worker} is gone, and this class is much like it"
    message = f"{what}: jobs of the old name would fail as unknown"
    return Finding("renamed-without-alias", worker, new.place, message, RENAME_CLASS, (f'aliases = ("{worker}",)',))


def renamed(worker: str, now: str, new: Entry, *, lost: bool) -> Finding:
    """The new name is unknown to processes of the last release."""
    if not lost:
        text = f"runs jobs of {worker}; those it pushes as {now} fail in processes of the last release, and are tried again"
        return change(now, new, text, RENAME_CLASS)
    message = f"retry = {new.retry}, and processes of the last release do not know {now}: a job that they fetch fails for good"
    write = (f'wire_name = "{worker}"', f'aliases = ("{now}",)  # the next release: aliases = ("{worker}",) alone')
    return Finding("lost-on-old", now, f"{new.place}.wire_name", message, RENAME_CLASS, write)


def alias_dropped(worker: str, old: Entry, alias: str, since: date, *, fresh: bool) -> Finding:
    """A former name is known no longer."""
    if not fresh:
        return change(worker, old, f"the alias {alias} went; the name is pushed no longer since {since}")
    message = f"the alias {alias} went, and jobs of this name were pushed until {since}: {_last_until(since)}"
    return Finding(
        "alias-dropped",
        worker,
        f"{old.place}.aliases",
        message,
        RENAME_CLASS,
        (f'aliases = ("{alias}",)', _settle(worker)),
    )


def retirement_dropped(worker: str, since: date, *, fresh: bool) -> Finding:
    """A removed class is remembered no longer."""
    place = "config/application.yml: retired_workers"
    if not fresh:
        return Finding("change", worker, place, f"{worker} went; it is pushed no longer since {since}")
    message = f"{worker} went, and its jobs were pushed until {since}: {_last_until(since)}"
    return Finding(
        "retirement-dropped", worker, place, message, REMOVE_WORKER, (f'"{worker}": "why it went"', _settle(worker))
    )


def new_worker(worker: str, new: Entry) -> Finding:
    """Processes of the last release do not know it."""
    fate = "fails there for good" if new.retry is False or new.retry == 0 else "fails there, and is tried again"
    text = f"is new, and best pushed from the next release on: a job that a process of the last release fetches {fate}"
    return change(worker, new, text, NEW_WORKER)


def queue_changed(worker: str, old: Entry, new: Entry | None, queue: str, *, served: bool) -> Finding:
    """Jobs may be left in a queue to which none go any more."""
    went = "nothing of it goes" if new is None else f"its jobs go to {' and '.join(new.queues)}, not"
    if served:
        return Finding("change", worker, old.place, f"{went} to {queue}, which is served (config/queues.yml)")
    message = f"{went} to {queue}, and no line of config/queues.yml serves that queue, in which jobs may be left"
    write = (
        "scripts/generate_queues  # keeps it in config/queues.yml while jobs of that release may be left",
        _settle(worker),
    )
    return Finding("queue-unserved", worker, f"{old.place}: queue", message, MOVE_QUEUE, write)


def shard_changed(worker: str, old: Entry, new: Entry) -> Finding:
    """Jobs are left on another Redis."""
    text = f"its jobs go to the shard {new.shard}, not {old.shard}: processes there have its queue, schedule and retries to work off"
    return change(worker, new, text, MOVE_QUEUE)


def shard_vanished(worker: str, old: Entry) -> Finding:
    """Nobody can reach the Redis of its jobs."""
    message = f"its jobs went to the shard {old.shard}, which config/redis.yml does not have any more"
    return Finding(
        "shard-vanished",
        worker,
        f"{old.place}: shard",
        message,
        MOVE_QUEUE,
        (f"{old.shard}: {{url: ...}}  # in config/redis.yml",),
    )


def _with_default(after: Parameters, name: str) -> tuple[str, ...]:
    """The method with a default for the new parameter, which may then be None, and for those after it."""
    index = next(place for place, one in enumerate(after) if one.name == name)
    later = [one if one.rest or one.optional else _or_none(one) for one in after[index:]]
    return (declared("perform", (*after[:index], *later)),)


def _or_none(one: Parameter) -> Parameter:
    shape = one.shape
    wider = (
        shape if not shape or shape == {"type": "null"} else {"anyOf": [*shape.get("anyOf", [shape]), {"type": "null"}]}
    )
    return Parameter.model_validate({"name": one.name, "type": wider, "optional": True})


def _as_it_was(before: Parameters, after: Parameters) -> Parameters:
    return tuple(
        old if index < len(before) and (old := before[index]).optional and not one.rest else one
        for index, one in enumerate(after)
    )


def _from(parameters: Parameters, count: int) -> Parameters:
    return parameters[count:]


def _joined(after: Parameters, kept: Parameters) -> Parameters:
    return (*(one for one in after if not one.rest), *kept, *(one for one in after if one.rest))


def _raised(version: int, before: Parameters, after: Parameters) -> tuple[str, ...]:
    return (f"version = {version + 1}", declared("perform", after), declared(f"perform_v{version}", before))


def _settle(worker: str) -> str:
    return f'or, when no such job is left: scripts/check_compat --settle {worker} --because "..."'


def _last_until(since: date) -> str:
    return f"retries of them last until {since + IN_FLIGHT}"
