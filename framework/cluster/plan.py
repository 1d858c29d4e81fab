"""Plan the processes of ``cluster`` from its arguments, without importing a class or starting anything.

Each argument is a group (GitLab's queue group). A process serves one shard, so a group becomes ``processes`` processes for
each shard that has some of its queues.
"""

import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from framework.cluster.child import ChildSpec
from framework.command_line import command
from framework.errors import QueryError, SelectorError
from framework.process.own_queues import CapsuleOptions
from framework.route.router import MAIN
from framework.route.rule_checks import serves
from framework.route.topology import QueueLocations, ShardNames, sort_main_first
from framework.text import did_you_mean, format_count, join_names, nearest
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT

ALL_QUEUES = "*"
MOST_SLOTS = 50
"""The maximum of slots when only the minimum is given (GitLab's default)."""

# The same as in the warnings of a worker process about its queues.
_SIMILARITY = 0.8


@dataclass(frozen=True, slots=True)
class Selection:
    """The meaning of the arguments: queries or names, to serve or to leave out, on these shards only (none: on all)."""

    by_query: bool = False
    negate: bool = False
    shards: ShardNames = ()


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The number of processes of a group on each of its shards, and the slots of a process."""

    slots: int
    processes: int = 1
    least: int | None = None
    most: int | None = None
    capsules: tuple[CapsuleOptions, ...] = ()
    """Each process runs those of which it serves a queue, in addition to its slots."""

    def slots_for(self, queues: int) -> int:
        """Return the slots by GitLab's rule: queues + 1, within the two bounds. ``most`` alone is the number itself."""
        # GitLab's rule fits one queue per worker. Under routing rules it would give `--max-concurrency 20 default` two.
        if self.least is None:
            return self.slots if self.most is None else self.most
        return max(self.least, min(queues + 1, self.most or MOST_SLOTS))


class PlannedProcess(NamedTuple):
    """One process: its group as it was given, and its queues with their weights."""

    name: str
    group: str
    shard: str
    slots: int
    queues: Mapping[str, int]
    no_namespaces: bool
    """Whether names are queues only, and no namespaces."""
    capsules: tuple[CapsuleOptions, ...] = ()
    """The capsules that serve some of the queues; ``queues`` has the others."""

    @property
    def all_queues(self) -> list[str]:
        return [*self.queues, *(name for one in self.capsules for name, _ in one.queues)]

    def spec(self, timeout_s: float, modules: Sequence[str], display_options: Sequence[str] = ()) -> ChildSpec:
        """Return the spec for the supervisor; ``display_options`` set the tag and labels that dashboards show."""
        # Without -P a folder ``framework`` of the working directory would be run in place of this package.
        argv = [sys.executable, "-P", "-m", "framework", "worker"]
        argv += ["--shard", self.shard, "-t", f"{timeout_s:g}", "-c", str(self.slots)]
        argv += [part for module in modules for part in ("-r", module)]
        argv += [*display_options, *(["--no-namespaces"] if self.no_namespaces else [])]
        weighted = len(self.queues) > 1
        values = [f"{name},{weight}" if weighted else name for name, weight in self.queues.items()]
        argv += [part for value in values for part in ("-q", value)]
        argv += [part for one in self.capsules for part in capsule_arguments(one)]
        argv += [] if self.queues else ["--only-capsules"]
        return ChildSpec(self.name, argv, self.shard, {"FRAMEWORK_WORKER_ID": self.name}, queues=tuple(self.all_queues))


class _Group(NamedTuple):
    """The queues of a group with their shards, how often it names each, and the known queues it names literally."""

    queues: Mapping[str, ShardNames]
    weights: Mapping[str, int] = MappingProxyType({})
    own: Collection[str] = ()


class Planner:
    """Resolve selectors by the known queues."""

    def __init__(self, places: QueueLocations, selection: Selection) -> None:
        self._places = places
        self._selection = selection
        self._namespaces = sorted({name.partition(":")[0] for name in places.known if ":" in name})

    def plan(self, selectors: Sequence[str], size: GroupSize) -> list[PlannedProcess]:
        """Return the processes, group by group. Raises SelectorError for the first selector without a meaning."""
        return [one for number, text in enumerate(selectors) for one in self._processes(number, text, size)]

    def _processes(self, number: int, selector: str, size: GroupSize) -> Iterator[PlannedProcess]:
        group = self._group(selector)
        copy, shown_as = 0, f"all but {selector}" if self._selection.negate else selector
        for shard in sort_main_first({shard for shards in group.queues.values() for shard in shards}):
            # Weights of 1 mean a random order. A strict order would starve all queues but the first of a namespace or of `*`.
            queues = {name: group.weights.get(name, 1) for name, shards in group.queues.items() if shard in shards}
            exact = any(serves(queues, name) for name in self._places.known if name not in queues)
            capsules, left = _split_off(size.capsules, queues)
            for _ in range(size.processes):
                yield PlannedProcess(
                    f"worker-{number}-{copy}", shown_as, shard, size.slots_for(len(left)), left, exact, capsules
                )
                copy += 1

    def _group(self, selector: str) -> _Group:
        chosen = self._by_query(selector) if self._selection.by_query else self._by_names(selector)
        if self._selection.negate:
            left = {name: shards for name, shards in self._places.served.items() if name not in chosen.queues}
            chosen = _Group(left)
            if not left:
                raise SelectorError(selector, "leaves no queue to serve: with --negate these are the ones left out")
        return self._on_chosen_shards(selector, chosen)

    def _on_chosen_shards(self, selector: str, group: _Group) -> _Group:
        """Keep the queues on the chosen shards. A queue given literally is served there even if its jobs go elsewhere."""
        wanted = self._selection.shards
        if not wanted:
            return group
        kept: dict[str, ShardNames] = {}
        for name, shards in group.queues.items():
            on = tuple(shard for shard in shards if shard in wanted) or (wanted if name in group.own else ())
            if on:
                kept[name] = on
        if not kept:
            elsewhere = join_names(sort_main_first({shard for shards in group.queues.values() for shard in shards}))
            raise SelectorError(selector, f"has no queue on {join_names(wanted)}; its queues are on {elsewhere}")
        return group._replace(queues=kept)

    def _by_query(self, selector: str) -> _Group:
        try:
            found = self._places.matching(selector)
        except QueryError as error:
            raise SelectorError(selector, str(error)) from None
        if not found:
            hint = self._places.unknown_value_hint(selector)
            raise SelectorError(selector, f"no worker in {self._places.source} matches it{hint}; {_regenerate_hint()}")
        return _Group(found)

    def _by_names(self, selector: str) -> _Group:
        names = read_names(selector)
        if names == [ALL_QUEUES]:
            if not self._places.served:
                raise SelectorError(
                    selector, f"there is no queue: {self._places.source} and the routing rules name none"
                )
            return _Group(self._places.served)
        found = [self._queues_of(selector, name) for name in names]
        weights = Counter(queue for one in found for queue in one)
        own = self._places.known.keys() & set(names)
        return _Group({queue: shards for one in found for queue, shards in one.items()}, weights, own)

    def _queues_of(self, selector: str, name: str) -> dict[str, ShardNames]:
        """Return a queue and the queues of the namespace of that name; for ``ns:*`` only the latter."""
        known, namespace = self._places.known, name.removesuffix(":*")
        members = {queue: shards for queue, shards in known.items() if queue.startswith(f"{namespace}:")}
        if namespace != name:
            if not members:
                raise SelectorError(selector, f"there is no namespace {namespace!r}{self._hint(namespace)}")
            return members
        if name in known:
            return {name: known[name], **members}
        if members:
            return {name: sort_main_first({shard for shards in members.values() for shard in shards}), **members}
        if self._selection.negate:
            message = f"there is no queue and no namespace {name!r} to leave out{self._hint(name)}"
            raise SelectorError(selector, message)
        return {name: self._selection.shards or (MAIN,)}

    def _hint(self, name: str) -> str:
        return f"{did_you_mean(name, [*self._places.known, *self._namespaces])}; {_regenerate_hint()}"

    def warnings(self, plan: Sequence[PlannedProcess]) -> list[str]:
        """Return warnings about likely mistakes: a queue with a similar known name, or one that receives no jobs."""
        served = dict.fromkeys((name, one.shard) for one in plan for name in one.all_queues)
        found = [self._warning(name, shard) for name, shard in served if name not in self._namespaces]
        found += [self._unrouted_warning(one) for one in plan]
        return list(dict.fromkeys(remark for remark in found if remark is not None))

    def _unrouted_warning(self, one: PlannedProcess) -> str | None:
        if not set(one.all_queues) <= self._places.known.keys() - self._places.routed.keys():
            return None
        return f"the routing rules send no jobs to {join_names(one.all_queues, max_names=5)}; only jobs that are left there run"

    def _warning(self, name: str, shard: str) -> str | None:
        known = self._places.known
        if name in known:
            shards = join_names(known[name])
            return (
                None
                if shard in known[name]
                else f"jobs of {name!r} go to {shards}; it is served on {shard} as requested"
            )
        near = nearest(name, [*known, *self._namespaces], cutoff=_SIMILARITY)
        if near is None:
            return None
        return (
            f"no worker is routed to the queue {name!r} (did you mean {near!r}?); the group serves it, because other "
            "producers may push to it"
        )


def _split_off(
    capsules: Sequence[CapsuleOptions], queues: Mapping[str, int]
) -> tuple[tuple[CapsuleOptions, ...], Mapping[str, int]]:
    """Return the capsules with those of their queues that a process serves, and the other queues. Namespaces are spelt out."""
    literal = {name for one in capsules for name, _ in one.queues}
    found: list[CapsuleOptions] = []
    for one in capsules:
        weights = {
            queue: weight
            for name, weight in one.queues
            for queue in queues
            if queue == name or (queue.startswith(f"{name}:") and queue not in literal)
        }
        if weights:
            found.append(one._replace(queues=tuple(weights.items())))
    taken = {name for one in found for name, _ in one.queues}
    return tuple(found), {name: weight for name, weight in queues.items() if name not in taken}


def capsule_arguments(capsule: CapsuleOptions) -> list[str]:
    """Return the option of a capsule for the command line of a worker."""
    parts = [part for name, weight in capsule.queues for part in ((name, str(weight)) if weight else (name,))]
    return ["--capsule", capsule.name, str(capsule.slots), ",".join(parts)]


def _regenerate_hint() -> str:
    return f"run {command('generate-queues')} if a worker is new"


def read_names(selector: str) -> list[str]:
    """Return the names of a group: queues, namespaces, ``ns:*``, or ``*`` alone. Raises SelectorError."""
    names = selector.split(",")
    for name in names:
        if name == ALL_QUEUES:
            if len(names) > 1:
                raise SelectorError(selector, "* selects every queue, so it must be the only name of the group")
        elif not QUEUE_NAME.fullmatch(name.removesuffix(":*")):
            raise SelectorError(selector, f"{name!r} is not a queue name: {QUEUE_NAME_FORMAT}{_cause_hint(name)}")
        elif name.isdecimal():
            raise SelectorError(selector, f"{name!r} looks like a weight, but a group has only names of queues")
    return names


def _cause_hint(name: str) -> str:
    """Return the probable mistake behind a name that is no queue name, as the end of its message."""
    if "\n" in name:
        return "; one argument is one group and must not contain a line break"
    return "; a query needs --queue-selector" if "=" in name else ""


def needs_all_queues(selectors: Sequence[str], selection: Selection) -> bool:
    """Return whether the arguments, unlike names of queues, need the generated file. Raises SelectorError."""
    names = [] if selection.by_query else [name for selector in selectors for name in read_names(selector)]
    return selection.by_query or selection.negate or any(name.endswith(ALL_QUEUES) for name in names)


def dry_run_lines(one: PlannedProcess, spec: ChildSpec) -> tuple[str, str]:
    """Return the two lines of ``--dryrun`` for a process: a comment, and its command line for a shell."""
    count = len(one.all_queues)
    queues = f"{format_count(count, 'queue')}: {join_names(one.all_queues)}"
    slots = (one.slots if one.queues else 0) + sum(capsule.slots for capsule in one.capsules)
    head = f"# {one.name} of {one.group!r}: shard {one.shard}, {format_count(slots, 'slot')}, {queues}"
    variables = [f"{name}={shlex.quote(value)}" for name, value in spec.env.items()]
    return head, " ".join([*variables, shlex.join(spec.argv)])
