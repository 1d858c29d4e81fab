"""Find the argument lists that a method no longer accepts, and describe each difference: the fault, the release step, the lines."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Literal, NamedTuple, TypeAlias

from framework.command_line import command, with_local_commands
from framework.devtools.compat.json_schema import annotation_text, is_superset, schema_text
from framework.devtools.compat.manifest import IN_FLIGHT, Parameter, Parameters, ReleasedWorker
from framework.text import join_names

IncompatibilityCode: TypeAlias = Literal[
    "added-without-default", "default-dropped", "removed", "reordered", "type-narrowed", "type-changed"
]


class Incompatibility(NamedTuple):
    """One reason why some argument lists of the old method do not fit the new one, or change their meaning."""

    code: IncompatibilityCode
    parameter: str
    text: str


def find_incompatibilities(old: Parameters, new: Parameters) -> list[Incompatibility]:
    """Return every such reason. Without one, each list that fits ``old`` fits ``new``, with every name at its place."""
    places, others = _positions(old), _positions(new)
    found = [*_new_requirements(places, others), *_removed_parameters(old, new)]
    moved = _moved_parameters(places, others)
    if moved:
        before, after = (", ".join(one.name for one in side) for side in (places, others))
        text = f"({before}) is ({after}) now, and jobs carry positions, not names: {' and '.join(moved)} would get another's value"
        return [*found, Incompatibility("reordered", moved[0], text)]
    return [*found, *_type_changes(old, new)]


def safe_changes(old: Parameters, new: Parameters) -> Iterator[str]:
    """Yield the changes of parameters that fit: names, defaults, wider types."""
    for before, after in zip(_positions(old), _positions(new), strict=False):
        if before.name != after.name:
            yield f"{before.name} is called {after.name} (jobs carry positions only; if its meaning changed, raise version)"
        if (
            before.optional
            and after.optional
            and (before.default, type(before.default)) != (after.default, type(after.default))
        ):
            yield f"jobs without {after.name} mean {after.default!r} now, not {before.default!r}"
        if not before.optional and after.optional:
            yield f"{after.name} has a default"
        if not is_superset(before.json_schema, after.json_schema):
            yield f"{after.name} takes {schema_text(after.json_schema)}, not only {schema_text(before.json_schema)}"
    for after in _positions(new)[len(_positions(old)) :]:
        yield f"{after.name} is new"


def declaration_line(method: str, parameters: Parameters) -> str:
    """Return the line that declares a method of these parameters, always valid Python.

    Each name comes once, and the rest last. After the first default every parameter has one, and a default fits its annotation.
    """
    words = {"self": "self"}
    optional = False
    for one in _positions(parameters):
        optional = optional or one.optional
        annotation = annotation_text(one.json_schema)
        if optional and one.default is None and not is_superset(one.json_schema, {"type": "null"}):
            annotation += " | None"
        words.setdefault(one.name, f"{one.name}: {annotation}{f' = {one.default!r}' if optional else ''}")
    rest = _rest(parameters)
    if rest is not None:
        words.setdefault(rest.name, f"*{rest.name}: {annotation_text(rest.json_schema)}")
    return f"def {method}({', '.join(words.values())}) -> None: ..."


def _new_requirements(old: Sequence[Parameter], new: Sequence[Parameter]) -> Iterator[Incompatibility]:
    for index, one in enumerate(new):
        if one.optional:
            continue
        if index >= len(old):
            yield Incompatibility("added-without-default", one.name, f"{one.name} is new and has no default")
        elif old[index].optional:
            yield Incompatibility("default-dropped", one.name, f"{one.name} no longer has a default")


def _removed_parameters(old: Parameters, new: Parameters) -> Iterator[Incompatibility]:
    places, others = _positions(old), _positions(new)
    if _rest(new) is not None:
        return
    gone = len(places) - len(others)
    if gone > 0:
        kept = {one.name for one in others}
        last = [one.name for one in places[-gone:]]
        # If the last parameters moved up, earlier ones were removed.
        moved = not kept.isdisjoint(last)
        for name in [one.name for one in places if one.name not in kept][:gone] if moved else last:
            yield Incompatibility("removed", name, f"{name} is no longer a parameter")
    rest = _rest(old)
    if rest is not None:
        yield Incompatibility("removed", rest.name, f"*{rest.name} is no longer a parameter")


def _moved_parameters(old: Sequence[Parameter], new: Sequence[Parameter]) -> list[str]:
    after = {one.name: index for index, one in enumerate(new)}
    return [one.name for index, one in enumerate(old) if after.get(one.name, index) != index]


def _type_changes(old: Parameters, new: Parameters) -> Iterator[Incompatibility]:
    places, others = _positions(old), _positions(new)
    length = len(places) if _rest(old) is None else max(len(places), len(others)) + 1
    for index in range(length):
        before = places[index] if index < len(places) else _rest(old)
        after = others[index] if index < len(others) else _rest(new)
        if before is None or after is None or is_superset(after.json_schema, before.json_schema):
            continue
        fault: IncompatibilityCode = (
            "type-narrowed" if is_superset(before.json_schema, after.json_schema) else "type-changed"
        )
        yield Incompatibility(
            fault,
            after.name,
            f"{after.name} takes {schema_text(after.json_schema)}, and jobs hold {schema_text(before.json_schema)}",
        )


def _positions(parameters: Parameters) -> list[Parameter]:
    return [one for one in parameters if not one.rest]


def _rest(parameters: Parameters) -> Parameter | None:
    return next((one for one in parameters if one.rest), None)


CompatCode: TypeAlias = Literal[
    "added-without-default",
    "default-dropped",
    "removed",
    "reordered",
    "type-narrowed",
    "type-changed",
    "no-handler",
    "handler-dropped",
    "version-lowered",
    "vanished",
    "renamed-without-alias",
    "alias-dropped",
    "retirement-dropped",
    "queue-unserved",
    "shard-vanished",
    "change",
]

ADD = "add an argument: (1) append it with a default; (2) pass it everywhere in the next release; (3) then remove the default"
DROP_DEFAULT = (
    "add an argument, step 3: remove the default when every push of a release has passed the argument "
    "and no job without it is left"
)
REMOVE_ARGUMENT = (
    "remove an argument: (1) give it a default and ignore it; (2) stop passing it in the next release; "
    "(3) remove it with the next major release"
)
CHANGE = (
    "change meaning, type or order: raise version, keep the old code as perform_v<N>; deploy processes before producers"
)
RENAME_CLASS = (
    "rename a class: declare both names for a release (wire_name the old one, aliases the new one), "
    "then only the old alias"
)
REMOVE_WORKER = (
    "remove a worker: (1) remove its pushes and schedules; (2) remove the class and name it in retired_workers; "
    "(3) remove the entry when `application-worker retired` allows it"
)
MOVE_QUEUE = (
    "rename a queue: serve the old one and the new one; after the deploy, `application-worker migrate-jobs queued --follow-rules`; "
    "then stop serving the old one"
)
NEW_WORKER = "new worker: deploy processes first; push it a release later, or behind a flag"
PUSH_LATER = "add an argument, step 1 of 3: pass it in no push of this release, and everywhere in the next"


class CompatFinding(NamedTuple):
    """One difference: its place (class and attribute), message, release step, and lines to write."""

    code: CompatCode
    worker: str
    place: str
    message: str
    step: str = ""
    write: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Return whether a deploy would break jobs. Other findings are information."""
        return self.code != "change"

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.message} [{self.code}]"]
        lines += [f"  step: {with_local_commands(self.step)}"] if self.fails else []
        lines += (f"  {'       ' if index else 'write: '}{line}" for index, line in enumerate(self.write))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            **self._asdict(),
            "step": with_local_commands(self.step),
            "write": list(self.write),
            "fails": self.fails,
        }


def safe_change(worker: str, entry: ReleasedWorker, text: str, step: str = "") -> CompatFinding:
    """Report a change that breaks no job."""
    return CompatFinding("change", worker, entry.place, text, step)


def incompatible_arguments(
    worker: str,
    old: ReleasedWorker,
    new: ReleasedWorker,
    method: str,
    before: Parameters,
    after: Parameters,
    found: Incompatibility,
) -> CompatFinding:
    """Report arguments of the last release that today's method refuses or misreads."""
    place = f"{new.place}.{method}"
    if method != "perform":
        return CompatFinding(found.code, worker, place, found.text, CHANGE, (declaration_line(method, before),))
    if found.code == "added-without-default":
        return CompatFinding(
            found.code,
            worker,
            place,
            f"{found.text}: jobs in flight lack it",
            ADD,
            _with_default(after, found.parameter),
        )
    if found.code == "default-dropped":
        message = f"{found.text}: jobs without it may be in flight"
        return CompatFinding(
            found.code,
            worker,
            place,
            message,
            DROP_DEFAULT,
            (declaration_line(method, _with_former_defaults(before, after)), _accept_hint(worker)),
        )
    if found.code == "removed":
        message = f"{found.text}: jobs in flight that hold it would be refused"
        return CompatFinding(
            found.code,
            worker,
            place,
            message,
            REMOVE_ARGUMENT,
            (declaration_line(method, _with_removed(before, after)), _accept_hint(worker)),
        )
    return CompatFinding(
        found.code, worker, place, found.text, CHANGE, _raise_version_lines(old.version, before, new.perform)
    )


def no_handler(
    worker: str, new: ReleasedWorker, version: int, before: Parameters, found: Sequence[Incompatibility]
) -> CompatFinding:
    """Report a raised version without a method for the jobs of the former version."""
    reasons = "; ".join(one.text for one in found)
    message = f"there is no perform_v{version}, and jobs of version {version} do not fit perform: {reasons}"
    return CompatFinding(
        "no-handler",
        worker,
        f"{new.place}.version",
        message,
        CHANGE,
        (declaration_line(f"perform_v{version}", before),),
    )


def handler_dropped(
    worker: str, old: ReleasedWorker, new: ReleasedWorker, version: int, *, maybe_in_flight: bool
) -> CompatFinding:
    """Report a removed method for an older version."""
    since = old.former_versions[version]
    if not maybe_in_flight:
        return safe_change(
            worker, new, f"perform_v{version} was removed; version {version} has not been pushed since {since}"
        )
    message = (
        f"perform_v{version} was removed, and jobs of version {version} were pushed until {since}: {_last_until(since)}"
    )
    return CompatFinding(
        "handler-dropped",
        worker,
        f"{new.place}.perform_v{version}",
        message,
        CHANGE,
        (declaration_line(f"perform_v{version}", old.handlers[version]), _accept_hint(worker)),
    )


def version_lowered(worker: str, old: ReleasedWorker, new: ReleasedWorker) -> CompatFinding:
    """Report jobs in flight that are newer than the class."""
    message = (
        f"version is {new.version} and was {old.version}, of which jobs are in flight; version {new.version} differs"
    )
    return CompatFinding(
        "version-lowered",
        worker,
        f"{new.place}.version",
        message,
        CHANGE,
        (f"version = {old.version + 1}", declaration_line(f"perform_v{old.version}", old.perform)),
    )


def deploy_processes_first(worker: str, old: ReleasedWorker, new: ReleasedWorker) -> CompatFinding:
    """Report that new jobs wait when processes of the last release fetch them."""
    text = f"version {new.version}, not {old.version}: its jobs wait until a process of this release fetches them"
    return safe_change(worker, new, text, CHANGE)


def push_later(worker: str, new: ReleasedWorker, added: Parameters) -> CompatFinding:
    """Report arguments that only today's code takes."""
    names = ", ".join(one.name for one in added) or "all that perform takes now"
    text = f"processes of the last release do not take {names}: do not pass it in a push of this release yet"
    return safe_change(worker, new, text, PUSH_LATER)


def vanished(worker: str, old: ReleasedWorker, config_label: str) -> CompatFinding:
    """Report a removed worker whose jobs no class runs."""
    message = f"no class runs jobs of {worker}, and some may be left: they would wait until they are set aside"
    write = (f"retired_workers:  # in {config_label}/application.yml", f'  "{worker}": "why it went"')
    return CompatFinding("vanished", worker, old.place, message, REMOVE_WORKER, write)


def retired(worker: str, old: ReleasedWorker) -> CompatFinding:
    """Report a retired worker, whose jobs are dropped."""
    text = "is retired: its jobs are dropped, also those that processes of the last release still push"
    return safe_change(worker, old, text, REMOVE_WORKER)


def rename_without_alias(worker: str, old: ReleasedWorker, new_name: str, new: ReleasedWorker) -> CompatFinding:
    """Report a removed class and a similar new one."""
    (was, named), (now, today) = _module_and_class(old), _module_and_class(new)
    alias = f'aliases = ("{worker}",)'
    write: tuple[str, ...] = (alias,)
    what = f"{worker} is gone, and this class resembles it"
    if old.place == new.place:
        what = f"its wire name was {worker} and is {new_name}"
    elif named == today:
        what = f"its module was {was} and is {now}, which makes its wire name {new_name} and not {worker}"
        write = (f'wire_name = "{worker}"  # keeps the name; or, to take the new one: {alias}',)
    message = f"{what}: jobs of the old name would wait until they are set aside"
    return CompatFinding("renamed-without-alias", worker, new.place, message, RENAME_CLASS, write)


def _module_and_class(entry: ReleasedWorker) -> tuple[str, str]:
    module, _, name = entry.place.rpartition(".")
    return module, name


def renamed(worker: str, now: str, new: ReleasedWorker) -> CompatFinding:
    """Report a new name that processes of the last release do not know."""
    text = f"runs jobs of {worker}; those it pushes as {now} wait until a process of this release fetches them"
    return safe_change(now, new, text, RENAME_CLASS)


def alias_dropped(worker: str, old: ReleasedWorker, alias: str, since: date, *, maybe_in_flight: bool) -> CompatFinding:
    if not maybe_in_flight:
        return safe_change(worker, old, f"the alias {alias} was removed; the name has not been pushed since {since}")
    message = f"the alias {alias} was removed, and jobs of this name were pushed until {since}: {_last_until(since)}"
    return CompatFinding(
        "alias-dropped",
        worker,
        f"{old.place}.aliases",
        message,
        RENAME_CLASS,
        (f'aliases = ("{alias}",)', _accept_hint(worker)),
    )


def retirement_dropped(worker: str, since: date, config_label: str, *, maybe_in_flight: bool) -> CompatFinding:
    """Report a removed entry of retired_workers."""
    place = f"{config_label}/application.yml: retired_workers"
    if not maybe_in_flight:
        return CompatFinding("change", worker, place, f"{worker} was removed; it has not been pushed since {since}")
    message = f"{worker} was removed, and its jobs were pushed until {since}: {_last_until(since)}"
    return CompatFinding(
        "retirement-dropped",
        worker,
        place,
        message,
        REMOVE_WORKER,
        (f'"{worker}": "why it went"', _accept_hint(worker)),
    )


def new_worker(worker: str, new: ReleasedWorker) -> CompatFinding:
    """Report a new worker, which processes of the last release do not know."""
    text = "is new: its jobs wait until a process of this release fetches them, and start late while the deploy lasts"
    return safe_change(worker, new, text, NEW_WORKER)


def queue_changed(
    worker: str, old: ReleasedWorker, new: ReleasedWorker | None, queue: str, config_label: str, served_by: str
) -> CompatFinding:
    """Report a queue that gets no more jobs of the worker and may still hold some."""
    went = "none of its jobs go" if new is None else f"its jobs go to {' and '.join(new.queues)}, not"
    if served_by:
        return CompatFinding("change", worker, old.place, f"{went} to {queue}, which is served ({served_by})")
    message = (
        f"{went} to {queue}, and no line of {config_label}/queues.yml serves that queue, in which jobs may be left"
    )
    write = (
        f"{command('generate-queues')}  # keeps it in {config_label}/queues.yml while jobs of that release may be left",
        _accept_hint(worker),
    )
    return CompatFinding("queue-unserved", worker, f"{old.place}: queue", message, MOVE_QUEUE, write)


def former_queue_unserved(queue: str, since: date, config_label: str) -> CompatFinding:
    """Report a queue of a release before the last one that may still hold jobs."""
    message = (
        f"{queue} got jobs until {since}, and no line of {config_label}/queues.yml serves it, in which jobs may be left: "
        f"{_last_until(since)}"
    )
    write = (f"{command('generate-queues')}  # keeps it in {config_label}/queues.yml until then",)
    return CompatFinding("queue-unserved", "", "released.yml: former_queues", message, MOVE_QUEUE, write)


def shard_changed(worker: str, new: ReleasedWorker, left: Sequence[str]) -> CompatFinding:
    """Report jobs that remain on the shards that it has left."""
    text = (
        f"its jobs go to the shard {join_names(new.shards)}, not {join_names(left)}: processes there have its queue, schedule and "
        "retries to work off"
    )
    return safe_change(worker, new, text, MOVE_QUEUE)


def shard_vanished(worker: str, old: ReleasedWorker, shard: str, config_label: str) -> CompatFinding:
    """Report a removed shard: no process reaches the jobs there."""
    message = f"its jobs went to the shard {shard}, which {config_label}/redis.yml no longer has"
    return CompatFinding(
        "shard-vanished",
        worker,
        f"{old.place}: shard",
        message,
        MOVE_QUEUE,
        (f"{shard}: {{url: ...}}  # in {config_label}/redis.yml",),
    )


def _with_default(after: Parameters, name: str) -> tuple[str, ...]:
    """Return the method with a default of None for the new parameter and for those after it."""
    index = next(place for place, one in enumerate(after) if one.name == name)
    later = [one if one.rest or one.optional else _allow_none(one) for one in after[index:]]
    return (declaration_line("perform", (*after[:index], *later)),)


def _allow_none(one: Parameter) -> Parameter:
    shape = one.json_schema
    wider = (
        shape if not shape or shape == {"type": "null"} else {"anyOf": [*shape.get("anyOf", [shape]), {"type": "null"}]}
    )
    return Parameter.model_validate({"name": one.name, "type": wider, "optional": True})


def _with_former_defaults(before: Parameters, after: Parameters) -> Parameters:
    return tuple(
        old if index < len(before) and (old := before[index]).optional and not one.rest else one
        for index, one in enumerate(after)
    )


def _with_removed(before: Parameters, after: Parameters) -> Parameters:
    """Return today's parameters with the removed ones as optional at their former places, because jobs carry positions."""
    kept = tuple(_as_optional(one) for one in before[len(after) :])
    if {one.name for one in kept}.isdisjoint(one.name for one in after):
        return (*after, *kept)
    # A removed parameter was not the last: the later ones have moved up and return to their former places.
    today, there = {one.name: one for one in after}, {one.name for one in before}
    old = (today[one.name] if one.name in today else _as_optional(one) for one in before)
    return (*old, *(_as_optional(one) for one in after if one.name not in there))


def _as_optional(one: Parameter) -> Parameter:
    return one if one.rest else one.model_copy(update={"optional": True})


def _raise_version_lines(version: int, before: Parameters, after: Parameters) -> tuple[str, ...]:
    return (
        f"version = {version + 1}",
        declaration_line("perform", after),
        declaration_line(f"perform_v{version}", before),
    )


def _accept_hint(worker: str) -> str:
    return f'or, when no such job is left: {command(f"check-compat --accept {worker}")} --reason "..."'


def _last_until(since: date) -> str:
    return f"retries of them last until {since + IN_FLIGHT}"
