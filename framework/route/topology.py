"""Which queues there are, and on which shards: from all_queues.yml and the routing rules, without a single class. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from framework.command_line import command
from framework.declare.declaration import Declaration
from framework.declare.names import queue_name
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.messages import did_you_mean
from framework.route.query import parse, worker_attributes
from framework.route.router import MAIN, Router
from framework.typeguards import is_list, short_repr
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT, WIRE_NAME

QueueEntry: TypeAlias = Mapping[str, Any]
ShardNames: TypeAlias = tuple[str, ...]

SOURCE = "workers/all_queues.yml"
"""How messages call the generated file, unless they are told otherwise."""


def regenerate_advice() -> str:
    """Return what to do about a generated file that does not hold."""
    return f"run {command('generate-queues')} and commit what it writes"


class QueueLocation(NamedTuple):
    """A queue on a shard."""

    queue: str
    shard: str


class QueueLocations:
    """Where the jobs of the workers wait whose entries of all_queues.yml are given; each queue with its shards, main first.

    ``routed`` are the queues to which jobs go: what the rules name, what a worker's own ``queue`` and ``shard`` say, the
    generated name where no rule matches, retry queues; also for each alias, as an older release pushes under it. ``known`` adds
    generated names from which a rule has taken the jobs away: some may be left there. Of ``retired`` classes only the name is
    known.

    Raises ConfigurationError with every entry that generate-queues cannot have written for this configuration.
    """

    def __init__(
        self, router: Router, entries: Sequence[QueueEntry], retired: Iterable[str] = (), *, source: str = SOURCE
    ) -> None:
        problems = [problem for entry in entries for problem in _problems(router, entry, source)]
        if problems:
            raise ConfigurationError(problems)
        self._router = router
        self.source = source
        self._entries = entries
        everyone = [*entries, *({"worker_name": name, "name": queue_name(name, None)} for name in retired)]
        routed = [
            QueueLocation(rule.queue, rule.shard or MAIN) for rule, _ in router.compiled_rules if rule.queue is not None
        ]
        routed += [place for entry in everyone for place in self._routed(entry)]
        self.routed: dict[str, ShardNames] = _by_queue(routed)
        former = [
            place for entry in everyone for place in _generated_locations(entry) if place.queue not in self.routed
        ]
        self.known: dict[str, ShardNames] = _by_queue([*routed, *former])

    def matching(self, text: str) -> dict[str, ShardNames]:
        """The queues to which the jobs of those workers go that match a query, with their shards. Raises QueryError."""
        query = parse(text, self._router.categories)
        chosen = (entry for entry in self._entries if query.matches(worker_attributes(entry)))
        return _by_queue(place for entry in chosen for place in self._routed(entry))

    def unknown_value_hint(self, text: str) -> str:
        """For a query that no worker matches: the first value in it that none has, and the nearest that one has."""
        facts = [worker_attributes(entry) for entry in self._entries]
        for term in (term for terms in parse(text).alternatives for term in terms if not term.negated):
            known = {value for one in facts for value in one[term.attribute]}
            for value in term.values:
                if value not in known:
                    return f": none has {term.attribute} {value}{did_you_mean(value, sorted(known))}"
        return ""

    def _routed(self, entry: QueueEntry) -> Iterator[QueueLocation]:
        routes = [self._router.route_of(one) for one in _under_all_names(entry)]
        yield from (QueueLocation(route.queue, route.shard) for route in routes)
        if entry.get("retry_queue"):
            yield QueueLocation(entry["retry_queue"], routes[0].shard)


def locations_of(router: Router, declarations: Iterable[Declaration]) -> dict[QueueLocation, list[Declaration]]:
    """Return each place to which jobs of these classes go, and their retries, with the classes."""
    found: dict[QueueLocation, list[Declaration]] = {}
    for declaration in declarations:
        for place in _locations(router, declaration):
            found.setdefault(place, []).append(declaration)
    return found


def queues_on(router: Router, declarations: Iterable[Declaration], shard: str) -> dict[str, list[Declaration]]:
    """Return each queue of a shard to which jobs of these classes go, under their former names too, with the classes."""
    found: dict[str, list[Declaration]] = {}
    for declaration in declarations:
        routes = [router.route_of_alias(declaration, alias) for alias in declaration.aliases]
        places = [*_locations(router, declaration), *(QueueLocation(route.queue, route.shard) for route in routes)]
        for queue in dict.fromkeys(place.queue for place in places if place.shard == shard):
            found.setdefault(queue, []).append(declaration)
    return found


def _locations(router: Router, declaration: Declaration) -> list[QueueLocation]:
    route = router.route(declaration)
    places = [
        QueueLocation(queue, route.shard) for queue in (route.queue, declaration.retry_queue) if queue is not None
    ]
    return list(dict.fromkeys(places))


def _under_all_names(entry: QueueEntry) -> Iterator[QueueEntry]:
    """The entry, and what it would be under each alias (``Declaration.with_wire_name``)."""
    yield entry
    for alias in entry.get("aliases") or ():
        yield {**entry, "worker_name": alias, "name": queue_name(alias, entry.get("queue_namespace"))}


def _generated_locations(entry: QueueEntry) -> Iterator[QueueLocation]:
    """Where jobs go that no rule matches."""
    return (QueueLocation(one["name"], entry.get("shard") or MAIN) for one in _under_all_names(entry))


def _by_queue(places: Iterable[QueueLocation]) -> dict[str, ShardNames]:
    found: dict[str, set[str]] = {}
    for queue, shard in places:
        found.setdefault(queue, set()).add(shard)
    return {queue: sort_main_first(found[queue]) for queue in sorted(found)}


def sort_main_first(shards: Iterable[str]) -> ShardNames:
    """The shards in the order in which they are shown and served."""
    return tuple(sorted(shards, key=lambda shard: (shard != MAIN, shard)))


def _problems(router: Router, entry: QueueEntry, source: str) -> Iterator[ConfigurationProblem]:
    worker = entry.get("worker_name")
    if not isinstance(worker, str) or WIRE_NAME.fullmatch(worker) is None:
        yield ConfigurationProblem(
            source, "worker_name", f"{short_repr(worker)} is no class name: {regenerate_advice()}"
        )
        return
    for field in ("name", "queue", "retry_queue"):
        queue = entry.get(field)
        if (queue is not None or field == "name") and not _is_queue(queue):
            message = f"{short_repr(queue)} is not allowed, {QUEUE_NAME_FORMAT}: {regenerate_advice()}"
            yield ConfigurationProblem(source, f"{worker}.{field}", message)
    aliases = entry.get("aliases")
    if aliases is not None and not (is_list(aliases) and all(isinstance(one, str) for one in aliases)):
        yield ConfigurationProblem(
            source, f"{worker}.aliases", f"{short_repr(aliases)} is no list of class names: {regenerate_advice()}"
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
