"""Compute the queues and their shards from all_queues.yml and the routing rules, without loading a class.

Find classes and queues with jobs on several shards although a limit or lock is kept per shard. By routing rules a class has one
shard. Its jobs are on two if a former name is routed elsewhere, the rules have changed, or a push chose the shard.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.declare.names import queue_name
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.route.query import parse, worker_attributes
from framework.route.router import MAIN, Router, open_router
from framework.settings.files import ReleasedQueues, YamlError, all_queues_path, read_entries, read_released_queues
from framework.settings.model import CoreSettings
from framework.text import did_you_mean, join_names
from framework.typeguards import is_list, short_repr
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT, WIRE_NAME

QueueEntry: TypeAlias = Mapping[str, Any]
ShardNames: TypeAlias = tuple[str, ...]

SOURCE = "workers/all_queues.yml"
"""The default name of the generated file in messages."""


def regenerate_advice() -> str:
    """Return the remedy for a generated file that does not match the classes."""
    return f"run {command('generate-queues')} and commit the files"


class QueueLocation(NamedTuple):
    """Name a queue on a shard."""

    queue: str
    shard: str


class QueueLocations:
    """Hold the queues of the jobs of all workers in all_queues.yml, each with its shards, main first.

    ``routed`` are the queues that receive jobs: those named by rules, by a worker's own ``queue`` and ``shard``, the generated
    name where no rule matches, retry queues; also for each alias, as an older release pushes under it. ``known`` adds the
    generated queues whose jobs a rule now routes elsewhere: some jobs may remain there. Of ``retired`` classes only the name is
    known. ``served`` adds to ``routed`` the queues of ``released``, those of earlier releases, in which jobs may be left.

    Raises:
        ConfigurationError: lists every entry that generate-queues cannot have written for this configuration.
    """

    def __init__(
        self,
        router: Router,
        entries: Sequence[QueueEntry],
        retired: Iterable[str] = (),
        *,
        released: Iterable[tuple[str, str]] = (),
        source: str = SOURCE,
    ) -> None:
        problems = [problem for entry in entries for problem in _problems(router, entry, source)]
        if problems:
            raise ConfigurationError(problems)
        self._router = router
        self.source = source
        self._entries = entries
        all_entries = [*entries, *({"worker_name": name, "name": queue_name(name, None)} for name in retired)]
        routed = [
            QueueLocation(rule.queue, rule.shard or MAIN) for rule, _ in router.compiled_rules if rule.queue is not None
        ]
        routed += [place for entry in all_entries for place in self._routed(entry)]
        self.routed: dict[str, ShardNames] = _by_queue(routed)
        # check-compat reports a shard that is gone.
        earlier = [QueueLocation(queue, shard) for queue, shard in released if router.has_shard(shard)]
        self.served: dict[str, ShardNames] = _by_queue([*routed, *earlier])
        former = [
            place for entry in all_entries for place in _generated_locations(entry) if place.queue not in self.routed
        ]
        self.known: dict[str, ShardNames] = _by_queue([*routed, *earlier, *former])

    def matching(self, text: str) -> dict[str, ShardNames]:
        """Return the queues that receive the jobs of the workers matching a query, with their shards.

        Raises:
            QueryError: the query is wrong.
        """
        query = parse(text, self._router.categories)
        chosen = (entry for entry in self._entries if query.matches(worker_attributes(entry)))
        return _by_queue(place for entry in chosen for place in self._routed(entry))

    def unknown_value_hint(self, text: str) -> str:
        """Return a hint for a query that no worker matches: its first value that no worker has, and the closest value."""
        facts = [worker_attributes(entry) for entry in self._entries]
        for term in (term for terms in parse(text).alternatives for term in terms if not term.negated):
            known = {value for one in facts for value in one[term.attribute]}
            for value in term.values:
                if value not in known:
                    return f": none has {term.attribute} {value}{did_you_mean(value, sorted(known))}"
        return ""

    def _routed(self, entry: QueueEntry) -> Iterator[QueueLocation]:
        queues = [(route.queue, route.shard) for route in map(self._router.route_of, _under_all_names(entry))]
        further = (entry.get("retry_queue"), *(entry.get("chosen_queues") or ()))
        queues += [(queue, queues[0][1]) for queue in further if queue]
        for queue, shard in queues:
            yield from (QueueLocation(queue, one) for one in entry.get("spread") or (shard,))


def locations_of(router: Router, declarations: Iterable[Declaration]) -> dict[QueueLocation, list[Declaration]]:
    """Return each location that receives jobs of these classes, or their retries, with the classes."""
    found: dict[QueueLocation, list[Declaration]] = {}
    for declaration in declarations:
        for place in _locations(router, declaration):
            found.setdefault(place, []).append(declaration)
    return found


def former_locations(
    router: Router, declarations: Sequence[Declaration], released: ReleasedQueues
) -> dict[QueueLocation, list[Declaration]]:
    """Return each location of earlier releases that receives no more jobs of these classes and may have some, with the classes.

    Those of releases before the last one, whose classes are not known, are left out if a class of the last release is missing:
    its jobs may wait there.
    """
    names = {name: one for one in declarations for name in (one.wire_name, *one.aliases)}
    today = locations_of(router, declarations)
    found: dict[QueueLocation, list[Declaration]] = {}
    for worker, places in released.of_workers.items():
        for place in {QueueLocation(*place) for place in places} - today.keys():
            if worker in names:
                found.setdefault(place, []).append(names[worker])
    if released.of_workers.keys() <= names.keys():
        for place in {QueueLocation(*place) for place in released.former} - today.keys():
            found.setdefault(place, [])
    return {place: users for place, users in found.items() if router.has_shard(place.shard)}


def queues_on(router: Router, declarations: Iterable[Declaration], shard: str) -> dict[str, list[Declaration]]:
    """Return each queue of a shard that receives jobs of these classes, under former names too, with the classes."""
    found: dict[str, list[Declaration]] = {}
    for declaration in declarations:
        routes = [router.route_of_alias(declaration, alias) for alias in declaration.aliases]
        places = _locations(router, declaration)
        for route in routes:
            several = declaration.several_shards
            shards = (route.shard,) if several is None else router.shards_of(declaration)
            places += [QueueLocation(route.queue, one) for one in shards]
        for queue in dict.fromkeys(place.queue for place in places if place.shard == shard):
            found.setdefault(queue, []).append(declaration)
    return found


def _locations(router: Router, declaration: Declaration) -> list[QueueLocation]:
    route = router.route(declaration)
    queues = (route.queue, declaration.retry_queue, *declaration.chosen_queues)
    named = [queue for queue in dict.fromkeys(queues) if queue is not None]
    return [QueueLocation(queue, shard) for shard in router.shards_of(declaration) for queue in named]


def _under_all_names(entry: QueueEntry) -> Iterator[QueueEntry]:
    """Yield the entry, and the entry as it would be under each alias (``Declaration.with_wire_name``)."""
    yield entry
    for alias in entry.get("aliases") or ():
        yield {**entry, "worker_name": alias, "name": queue_name(alias, entry.get("queue_namespace"))}


def _generated_locations(entry: QueueEntry) -> Iterator[QueueLocation]:
    """Return the locations of jobs that match no rule."""
    shards = entry.get("spread") or (entry.get("shard") or MAIN,)
    return (QueueLocation(one["name"], shard) for one in _under_all_names(entry) for shard in shards)


def _by_queue(places: Iterable[QueueLocation]) -> dict[str, ShardNames]:
    found: dict[str, set[str]] = {}
    for queue, shard in places:
        found.setdefault(queue, set()).add(shard)
    return {queue: sort_main_first(found[queue]) for queue in sorted(found)}


def sort_main_first(shards: Iterable[str]) -> ShardNames:
    """Return the shards in the order in which they are shown and served."""
    return tuple(sorted(shards, key=lambda shard: (shard != MAIN, shard)))


def _problems(router: Router, entry: QueueEntry, source: str) -> Iterator[ConfigurationProblem]:
    worker = entry.get("worker_name")
    if not isinstance(worker, str) or WIRE_NAME.fullmatch(worker) is None:
        yield ConfigurationProblem(
            source, "worker_name", f"{short_repr(worker)} is not a class name: {regenerate_advice()}"
        )
        return
    for field in ("name", "queue", "retry_queue"):
        queue = entry.get(field)
        if (queue is not None or field == "name") and not _is_queue(queue):
            message = f"{short_repr(queue)} is not allowed, {QUEUE_NAME_FORMAT}: {regenerate_advice()}"
            yield ConfigurationProblem(source, f"{worker}.{field}", message)
    chosen = entry.get("chosen_queues")
    if chosen is not None and not (is_list(chosen) and all(map(_is_queue, chosen))):
        yield ConfigurationProblem(
            source, f"{worker}.chosen_queues", f"{short_repr(chosen)} is not a list of queues: {regenerate_advice()}"
        )
    aliases = entry.get("aliases")
    if aliases is not None and not (is_list(aliases) and all(isinstance(one, str) for one in aliases)):
        yield ConfigurationProblem(
            source, f"{worker}.aliases", f"{short_repr(aliases)} is not a list of class names: {regenerate_advice()}"
        )
    spread = entry.get("spread")
    if spread is not None and not (is_list(spread) and spread and all(map(router.has_shard, spread))):
        yield ConfigurationProblem(
            source, f"{worker}.spread", f"{short_repr(spread)} is not a list of shards: {regenerate_advice()}"
        )
    shard = entry.get("shard")
    if shard is not None and not router.has_shard(shard):
        yield ConfigurationProblem(
            source,
            f"{worker}.shard",
            f"{router.unknown_shard_message(shard)}; correct the class, and {regenerate_advice()}",
        )


def _is_queue(value: object) -> bool:
    return isinstance(value, str) and QUEUE_NAME.fullmatch(value) is not None


_RESTORE = "restore it from version control"


def open_queue_locations(settings: CoreSettings, *, required: bool) -> QueueLocations:
    """Return the locations by the generated file and the routing rules; by the rules only without a file, unless ``required``.

    The queues of earlier releases are added. About 250 ms for 1,000 workers.

    Raises:
        ConfigurationError: a rule or an entry is invalid, or a file is malformed.
    """
    router = open_router(settings)
    try:
        released = read_released_queues(settings)
    except YamlError as error:
        place = settings.generated_file_label("released.yml")
        raise ConfigurationError([ConfigurationProblem(place, "", f"{error}; {_RESTORE}")]) from None
    path, entries = all_queues_path(settings), list[dict[str, Any]]()
    source = settings.generated_file_label("all_queues.yml")
    if required or path.exists():
        try:
            entries = read_entries(path)
        except YamlError as error:
            raise ConfigurationError([ConfigurationProblem(source, "", f"{error}; {regenerate_advice()}")]) from None
    return QueueLocations(router, entries, settings.retired_workers, released=released.all_places(), source=source)


class ShardSplit(NamedTuple):
    """Describe a class or queue with jobs on several shards: the controls kept per shard, and the reason for each shard."""

    name: str
    place: str
    controls: tuple[str, ...]
    shards: Mapping[str, str]
    limited: bool

    def __str__(self) -> str:
        where = "; ".join(f"{shard}: {why}" for shard, why in self.shards.items())
        advice: list[str] = []
        if self.limited:
            first = next(iter(self.shards))
            advice.append(
                f"up to {len(self.shards)} times as many run: give each shard its share with "
                f"`{command(f'jobs limits set {self.name} N --shard {first} --reason TEXT --for 1d')}`"
            )
        if len(self.controls) > int(self.limited):
            advice.append("equal jobs run at the same time, one on each shard: perform must allow that")
        return (
            f"{self.name} ({' and '.join(self.controls)}) has jobs on shards {' and '.join(self.shards)} ({where}), and each shard "
            f"keeps its limits and locks by itself. Until one shard has all its jobs, {'; '.join(advice)}"
        )


def per_shard_controls(router: Router, declaration: Declaration) -> tuple[tuple[str, ...], bool]:
    """Return the limits and locks of a class that each shard keeps by itself, and whether one is a limit."""
    limit, most = declaration.facts.get("concurrency_limit"), declaration.facts.get("max_running_jobs")
    limits = [
        f"{name} = {'a callable' if callable(value) else value}"
        for name, value in (
            ("concurrency_limit", None if router.has_fleet_limits else limit),
            ("max_running_jobs", most),
        )
        if value not in (None, 0)
    ]
    locks = [] if declaration.deduplicate is None else ["idempotent" if declaration.idempotent else "deduplicate"]
    return (*limits, *locks), bool(limits)


# Decision 20: limits and locks are not spread over shards, so each shard would allow the whole limit.
def splits_by_rules(
    router: Router, declarations: Iterable[Declaration], queue_limits: Collection[str] = (), *, source: str
) -> Iterator[ShardSplit]:
    """Yield classes with a former name routed to another shard, and limited queues routed to several shards.

    ``source`` is the file of the setting ``limits``.
    """
    queues: dict[str, dict[str, list[str]]] = {}
    for declaration in declarations:
        name, route = declaration.wire_name, router.route(declaration)
        shards = {route.shard: "its route"}
        for queue in {route.queue, declaration.retry_queue or route.queue}.intersection(queue_limits):
            for shard in router.shards_of(declaration):
                queues.setdefault(queue, {}).setdefault(shard, []).append(name)
        for alias in declaration.aliases:
            former = router.route_of_alias(declaration, alias)
            if former.queue in queue_limits:
                queues.setdefault(former.queue, {}).setdefault(former.shard, []).append(alias)
            shards.setdefault(former.shard, f"the route of its former name {alias}")
        holds, limited = per_shard_controls(router, declaration)
        if holds and len(shards) > 1:
            yield ShardSplit(name, f"{declaration.qualified_name}: aliases", holds, shards, limited)
    for queue, users in sorted(queues.items()):
        if len(users) > 1:
            why = {shard: f"jobs of {join_names(names, max_names=5)} go there" for shard, names in users.items()}
            yield ShardSplit(
                f"queue/{queue}", f"{source}: limits.{queue}", (f"limits of the queue {queue}",), why, limited=True
            )


def splits_observed(
    router: Router,
    declarations: Iterable[Declaration],
    observed: Mapping[str, Mapping[str, str]],
    *,
    place_template: str,
) -> Iterator[ShardSplit]:
    """Yield classes with jobs seen on another shard than their route's. ``observed`` maps class and shard to the places."""
    for declaration in declarations:
        holds, limited = per_shard_controls(router, declaration)
        route, own = router.route(declaration), router.shards_of(declaration)
        elsewhere = {
            shard: where for shard, where in observed.get(declaration.wire_name, {}).items() if shard not in own
        }
        if holds and elsewhere:
            shards = {route.shard: "its route", **elsewhere}
            yield ShardSplit(
                declaration.wire_name, place_template.format(shard=next(iter(elsewhere))), holds, shards, limited
            )


def split_names(router: Router, declarations: Iterable[Declaration], shard: str) -> dict[str, str]:
    """Map names of jobs on ``shard`` to their class, for classes that another shard limits or locks."""
    found: dict[str, str] = {}
    for declaration in declarations:
        if per_shard_controls(router, declaration)[0] and shard not in router.shards_of(declaration):
            found |= dict.fromkeys((declaration.wire_name, *declaration.aliases), declaration.wire_name)
    return found


def format_counts(places: Mapping[str, int]) -> str:
    """Return where jobs were seen and how many, such as "queue mail 3, retry 1"."""
    return ", ".join(f"{place} {count:,}" for place, count in places.items())
