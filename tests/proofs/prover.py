"""Replay a history group by group and check after each: is every accepted, unfinished job in exactly one place?

The invariants (reference: no loss, no duplication at rest, single ownership):

I1  an accepted job that has not ended is in at least one key, and a job in no key never returns without a push
I2  it is in one key only; during a transfer to another shard it is in one key of each
I3  it is never in two working lists

and of the resources of jobs (``held_resources``): I9 of locks, I10 of slots.

Only the jobs that a group touches are checked. A live job costs the memory of its place; of an ended job its id stays.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.proofs.aof import Group, History, Torn
from tests.proofs.held_resources import HeldResources
from tests.proofs.keyspace import Keyspace, UnknownCommandError, shown
from tests.proofs.places import DUE, END, HELD, WORKING, jid_of, jobs_in, payload_in, place_of, readable, transit

END_MARK = b"proof:ended"
"""STRING: a job sets it to its id as its last act, so the history shows that it ended before its acknowledgement."""

_LANDED = b"aw:transferred:"
_RETIRED = b"aw:retired"
_COUNTERS = b"aw:counters"
_DUPLICATES, _SKIPPED = b"sidekiq_jobs_deduplicated_total", b"sidekiq_jobs_skipped_total"
_KEPT = 20
"""The number of violations that are reported completely."""

Places = tuple[bytes, ...]
OnProgress = Callable[["Verdict", int, int], object]


@dataclass
class Violation:
    """The first group that broke an invariant for one job."""

    rule: str
    what: str
    jid: bytes
    group: Group
    before: Places

    def __str__(self) -> str:
        group = self.group
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(group.at)) if group.at else "(no timestamps)"
        was = ", ".join(_text(key) for key in self.before) or "in no key"
        return "\n".join(
            [
                f"{self.rule}: job {_text(self.jid)} {self.what}",
                f"  before   {was}",
                f"  where    {group.path}, byte {group.offset}, group {group.number}, {when}",
                *(f"  command  {shown(command)}" for command in group.commands),
            ]
        )


@dataclass
class Verdict:
    """The result of the replay of one history."""

    place: Path
    marked: bool
    groups: int = 0
    commands: int = 0
    jobs: int = 0
    ends: Counter[str] = field(default_factory=Counter[str])
    """The jobs that ended, by the kind of their end."""
    slots: dict[str, int] = field(default_factory=dict[str, int])
    """The most taken slots of each concurrency limit at an instant, including those of jobs about to start."""
    left: Counter[str] = field(default_factory=Counter[str])
    """The jobs at the end, by key."""
    violations: list[Violation] = field(default_factory=list[Violation])
    broken: int = 0
    """The number of jobs that broke an invariant; the first are in ``violations``."""
    ignored: int = 0
    torn: Torn | None = None
    seconds: float = 0.0
    crossed: dict[bytes, tuple[bytes, Group]] = field(default_factory=dict[bytes, tuple[bytes, Group]])
    """The jobs that left for another shard: by token, their id and the group that removed them here."""
    landed: set[bytes] = field(default_factory=set[bytes])
    """The tokens of jobs received from another shard."""

    def add(self, violation: Violation) -> None:
        """Record one violation."""
        self.broken += 1
        if len(self.violations) < _KEPT:
            self.violations.append(violation)


class Prover:
    """Replays the groups of one history, one after another."""

    def __init__(self, place: Path, *, marked: bool) -> None:
        self.keyspace = Keyspace()
        self.verdict = Verdict(place, marked)
        self.at: dict[bytes, Places] = {}
        """The places of each job that is in a key."""
        self.ended: set[bytes] = set()
        """The jobs that left for good."""
        self.held_resources = HeldResources()
        self._marks: set[bytes] = set()
        self._broken: set[bytes] = set()

    def replay(self, group: Group) -> None:
        """Replay one group and check the jobs it touched. Raises UnknownCommandError."""
        keyspace, verdict = self.keyspace, self.verdict
        verdict.groups += 1
        verdict.commands += len(group.commands)
        for command in group.commands:
            try:
                keyspace.apply(command)
            except UnknownCommandError as error:
                message = f"{group.path}, byte {group.offset}, group {group.number}: {error}"
                raise UnknownCommandError(message) from error
            if command[0] in _SETS_STRING:
                self._note(command[1], command[2])
        if keyspace.flushed:
            self._forget_all()
        if keyspace.moves or keyspace.held:
            self._check(group)

    def _note(self, key: bytes, value: bytes) -> None:
        if key == END_MARK and value not in self.ended:
            self._marks.add(value)
        elif key.startswith(_LANDED):
            self.verdict.landed.add(key[len(_LANDED) :])

    def _forget_all(self) -> None:
        """Start a new history after FLUSHALL, which no job causes: the lost jobs are counted."""
        self.verdict.ends["wiped by FLUSHALL"] += len(self.at)
        self.keyspace.flushed = False
        self.keyspace.moves.clear()
        self.keyspace.held.clear()
        self.held_resources.clear()
        self.at.clear()
        self.ended.clear()
        self._marks.clear()

    def _check(self, group: Group) -> None:
        before: dict[bytes, Places] = {}
        last: dict[bytes, tuple[bytes, bytes]] = {}
        at = self.at
        moves = (
            (key, payload, change, name)
            for key, member, change, name in self.keyspace.moves
            for payload in jobs_in(payload_in(key, member))
        )
        for key, payload, change, name in moves:
            jid = jid_of(payload)
            here = at.get(jid, ())
            before.setdefault(jid, here)
            last[jid] = (payload, name)
            if change > 0:
                at[jid] = (*here, key)
            elif len(here) == 1:
                del at[jid]
            else:
                index = here.index(key)
                at[jid] = here[:index] + here[index + 1 :]
        self.keyspace.moves.clear()
        for jid, was in before.items():
            now = at.get(jid, ())
            if len(now) == 1 and was:
                continue
            if now:
                self._check_put(group, jid, was, now)
            else:
                self._check_gone(group, jid, was, *last[jid])
        self._check_held(group, before)

    def _check_held(self, group: Group, before: dict[bytes, Places]) -> None:
        came = self.held_resources.update(self.keyspace) if self.keyspace.held else ()
        if self.held_resources.by_job:
            for rule, what, jid in self.held_resources.broken({*before, *came}, self.at):
                self._broke(group, rule, what, jid, before.get(jid, self.at.get(jid, ())))

    def _check_put(self, group: Group, jid: bytes, was: Places, now: Places) -> None:
        if not was:
            self._check_new(group, jid, now)
        if len(now) < 2 or not readable(jid):
            return
        working = [key for key in now if place_of(key) == WORKING]
        where = ", ".join(_text(key) for key in now)
        if len(working) > 1:
            self._broke(group, "I3", f"is in two working lists: {where}", jid, was)
        else:
            self._broke(group, "I2", f"is in two places: {where}", jid, was)

    def _check_new(self, group: Group, jid: bytes, now: Places) -> None:
        landed = any(command[0] == b"SET" and command[1].startswith(_LANDED) for command in group.commands)
        if jid in self.ended:
            self.ended.discard(jid)
            if not landed and readable(jid):
                self._broke(group, "I1", f"had ended, and is again in {_text(now[0])}", jid, ())
            return
        self.verdict.jobs += 1
        if place_of(now[0]) in (WORKING, HELD) and readable(jid):
            self._broke(group, "I1", f"comes from nowhere into {_text(now[0])}", jid, ())

    def _check_gone(self, group: Group, jid: bytes, was: Places, payload: bytes, name: bytes) -> None:
        """Check a job that is in no key any more: was that a legal end?"""
        self.ended.add(jid)
        if not was:
            self.verdict.jobs += 1
            self._broke(group, "I1", "is pushed, and in no key", jid, was)
            return
        kind = place_of(was[0])
        if kind == END:
            self.verdict.ends[f"left {_text(was[0])}"] += 1
        elif kind == WORKING and name.upper() == b"LREM":
            self._check_acknowledged(group, jid, was)
        elif kind == DUE and _counts(group, _DUPLICATES):
            self.verdict.ends["dropped, a duplicate when it became due"] += 1
        elif kind == HELD and _counts(group, _SKIPPED):
            self.verdict.ends["dropped by an operator"] += 1
        elif kind == DUE and (token := transit(payload)):
            self.verdict.crossed[token] = (jid, group)
            self.verdict.ends["went to another shard"] += 1
        else:
            self._broke(group, "I1", f"left {_text(was[0])} by {_text(name)}, and is in no key", jid, was)

    def _check_acknowledged(self, group: Group, jid: bytes, was: Places) -> None:
        if any(command[0] == b"HINCRBY" and command[1] == _RETIRED for command in group.commands):
            self.verdict.ends["dropped, its class is retired"] += 1
        elif self.verdict.marked and jid not in self._marks and readable(jid):
            self._broke(group, "I1", "was acknowledged before it had ended", jid, was)
        else:
            self._marks.discard(jid)
            self.verdict.ends["finished"] += 1

    def _broke(self, group: Group, rule: str, what: str, jid: bytes, was: Places) -> None:
        """Report only the first violation of each job: the next ones may follow from it."""
        if jid not in self._broken:
            self._broken.add(jid)
            self.verdict.add(Violation(rule, what, jid, group, was))


_SETS_STRING = {b"SET", b"set"}


def _counts(group: Group, counter: bytes) -> bool:
    """Return whether a dropped job is counted: another job does its work, or an operator dropped it."""
    return any(
        command[0] == b"HINCRBY" and command[1] == _COUNTERS and command[2].startswith(counter)
        for command in group.commands
    )


def prove(place: Path, on_progress: OnProgress | None = None) -> Verdict:
    """Replay the whole history of one server; ``on_progress`` is called often with the number of bytes done and of all bytes.

    Raises HistoryError when it is incomplete, UnknownCommandError when the model cannot follow it.
    """
    history = History(place)
    prover = Prover(place, marked=_marked(history))
    verdict, started = prover.verdict, time.monotonic()
    done = 0
    for group in history.groups():
        prover.replay(group)
        if on_progress and not verdict.groups % 2048:
            done = sum(path.stat().st_size for path in history.files[: history.files.index(group.path)]) + group.end
            on_progress(verdict, done, history.size)
    verdict.seconds = time.monotonic() - started
    verdict.torn = history.torn
    verdict.ignored = prover.keyspace.ignored
    verdict.slots = {_text(key): most for key, most in prover.held_resources.most.items()}
    for places in prover.at.values():
        verdict.left.update(_text(key) for key in places)
    return verdict


def prove_all(places: Iterable[Path], on_progress: OnProgress | None = None) -> list[Verdict]:
    """Replay the histories of all shards of one installation: each transferred job must have arrived."""
    verdicts = [prove(place, on_progress) for place in places]
    for verdict in verdicts:
        others = set[bytes]().union(*(other.landed for other in verdicts if other is not verdict))
        for token, (jid, group) in verdict.crossed.items():
            if token not in others:
                what = f"left for another shard, and landed on none (token {_text(token)})"
                verdict.add(Violation("I1", what, jid, group, ()))
    return verdicts


def _marked(history: History) -> bool:
    """Return whether jobs wrote end marks: then each acknowledgement needs one before it."""
    for path in history.files:
        with path.open("rb") as file:
            tail = b""
            while chunk := file.read(1 << 22):
                if END_MARK in tail + chunk:
                    return True
                tail = chunk[-len(END_MARK) :]
    return False


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")
