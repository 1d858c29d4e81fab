"""Check one case: after each death, before any recovery, and at the end."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from redis import Redis

from framework.features.batches import keys as batch_keys
from framework.fetch.deferred_blocks import read_jobs
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, TRANSFER
from framework.wire.resources import IDEMPOTENCY_KEY
from tests.proofs.crash_points.environment import FOREIGN, CaseEnvironment
from tests.proofs.crash_points.job_notes import Note, count
from tests.proofs.crash_points.jobs import BATCH, SAMPLE
from tests.proofs.crash_points.scenarios import LEFT, ExpectedEnd
from tests.proofs.leftover_keys import leaks
from tests.proofs.places import END, jobs_in, payload_in, place_of, unwrapped

DOCUMENTED = {
    *(
        "queue",
        "enqueued_at",
        "at",
        "interrupted_count",
        "aw_death_count",
        "aw_suspect",
        "scheduled_at",
        TRANSFER,
        BUFFERED_AT,
    ),
    *("retry_count", "failed_at", "retried_at", "error_class", "error_message", "error_backtrace"),
}
"""The fields that the framework may write, change or remove during a job's life (invariant I5)."""

_OVER = {b"completed", b"failed", b"discarded", b"cancelled"}
_UNREADABLE = re.compile(rb"\xff\{(\d+)")


@dataclass(frozen=True)
class Member:
    """A job in a key. ``jid`` is empty when it cannot be read."""

    shard: str
    key: str
    serial: int
    jid: str
    data: bytes

    @property
    def rests(self) -> bool:
        """Return whether it is in a place where it will not run."""
        return self.key == keys.DELETED or place_of(self.key.encode()) == END

    @property
    def held(self) -> bool:
        """Return whether a process has it in its working list."""
        return self.key.startswith("aw:working:")

    def __str__(self) -> str:
        return f"{self.shard}/{self.key}"


@dataclass
class CaseChecks:
    """The checks of one case. ``problems`` says which did not hold; ``repeats`` are the runs that deaths may repeat, by
    jid.
    """

    environment: CaseEnvironment
    expected_end: Callable[[int], ExpectedEnd]
    problems: list[str] = field(default_factory=list)
    repeats: Counter[str] = field(default_factory=Counter)
    _first: dict[str, dict[str, Any]] = field(default_factory=dict)
    _over: dict[str, int] = field(default_factory=dict)
    """The jobs that ran and were in no key at an earlier look, with their number of runs then."""
    _deaths: bool = False

    def check(self, when: str, *, deaths: bool) -> None:
        """Check that every job is where it should be; no process runs any more."""
        notes, members = self.environment.notes.read(), self._members()
        self._unchanged(when, members)
        self._nowhere_and_twice(when, notes, members)
        self._states(when, notes, members)
        self._holdings(when, members)
        runs, failed = _by_jid(notes, "begun"), _failures(notes)
        present = {member.jid for member in members}
        self._over.update({jid: number for jid, number in runs.items() if jid not in present and jid not in self._over})
        if deaths:
            self._deaths = True
            held = {member for member in members if member.held and member.jid}
            self.repeats.update(one.jid for one in held if runs[one.jid] > self._by_right(one.serial, failed[one.jid]))

    def finish(self) -> None:
        """Check the end, when every job is settled and every process has left."""
        notes, members = self.environment.notes.read(), self._members()
        self.problems += [f"{note.words}" for note in notes if note.kind == "wrong"]
        self.problems += [f"job {note.about} ran with {note.words}" for note in notes if note.kind == "changed"]
        self._fates(notes, members)
        self._runs(notes)
        self._last_states(notes)
        self._retired(notes)
        self._death_handlers(notes)
        self._batch()
        self._keys()

    # --- checks of each look

    def _unchanged(self, when: str, members: list[Member]) -> None:
        for member in members:
            if not member.jid:
                continue
            payload = json.loads(member.data)
            if "x_foreign" in payload and FOREIGN not in member.data:
                self._add_problem(
                    when, f"job {member.serial} in {member}: the field of another producer is not what it was"
                )
            if payload["args"] != [member.serial, SAMPLE]:
                self._add_problem(when, f"job {member.serial} in {member}: its arguments are {payload['args']}")
            kept = {name: value for name, value in payload.items() if name not in DOCUMENTED}
            if self._first.setdefault(member.jid, kept) != kept:
                self._add_problem(when, f"job {member.serial} in {member}: {kept} was {self._first[member.jid]}")

    def _nowhere_and_twice(self, when: str, notes: list[Note], members: list[Member]) -> None:
        ended, failed = count(notes, "ended"), count(notes, "failed")
        retired = sum(self._counted().values())
        there = {member.serial for member in members}
        for serial in sorted({note.about for note in notes if note.kind == "accepted"} - there):
            end = self.expected_end(serial).end
            if end == "retired":
                retired -= 1
            elif end != "refused" and not (failed if end == "gone" else ended)[serial]:
                self._add_problem(when, f"job {serial} is in no key and has not ended")
        if retired < 0:
            self._add_problem(when, f"{-retired} jobs of the retired class are in no key and not counted")
        for jid, number in Counter(member.jid or str(member.data) for member in members).items():
            places = [member for member in members if (member.jid or str(member.data)) == jid]
            if number > 1 and not _crossing(places):
                self._add_problem(when, f"job {places[0].serial} is in {', '.join(map(str, places))}")

    def _states(self, when: str, notes: list[Note], members: list[Member]) -> None:
        over = count(notes, "ended", "failed")
        words = self._state_words()
        for jid, state in words.items():
            about = next((one.serial for one in members if one.jid == jid and not one.rests), None)
            if about and state in _OVER and not over[about] and self.expected_end(about).end != "refused":
                self._add_problem(when, f"the state of {jid}, which has not ended, is {state.decode()}")
        for member in members:
            if b'"status_expiration"' not in member.data:
                continue
            word = words.get(member.jid)
            if member.key in (keys.RETRY, keys.DEAD):
                right = word == (b"retrying" if member.key == keys.RETRY else b"failed")
            else:  # other producers write none
                right = word is not None or FOREIGN in member.data
            if not right:
                self._add_problem(when, f"the state of {member.jid}, in {member}, is {word!r}")

    def _holdings(self, when: str, members: list[Member]) -> None:
        """Check that every lock and slot belongs to a job that may run, and that every job with a lock still owns it."""
        client, waiting, locks = (
            self.environment.clients["main"],
            {one.jid for one in members if not one.rests},
            set[str](),
        )
        for key in cast("list[bytes]", client.keys(f"{keys.LOCKS}*")):
            owner = cast("bytes", client.hget(key, "jid") or b"").decode()
            locks.add(owner)
            if owner not in waiting and owner != LEFT:
                self._add_problem(when, f"{key.decode()} is locked for {owner}, which will not run")
        lists = {(one.key, one.jid) for one in members if one.held}
        for key in cast("list[bytes]", client.keys("aw:limit:*:running")):
            for slot in cast("list[bytes]", client.zrange(key, 0, -1)):
                identity, _, jid = slot.decode().rpartition(" ")
                if (keys.working(identity), jid) not in lists and (identity or jid not in waiting):
                    self._add_problem(when, f"{slot.decode()} has a slot in {key.decode()}, and is not there")
        for one in members:
            if not one.rests and IDEMPOTENCY_KEY.encode() in one.data and one.jid not in locks:
                self._add_problem(when, f"job {one.serial} in {one} has no lock any more")

    # --- checks of the end

    def _fates(self, notes: list[Note], members: list[Member]) -> None:
        ended, failed, begun = (count(notes, kind) for kind in ("ended", "failed", "begun"))
        accepted = {note.about for note in notes if note.kind == "accepted"}
        for serial in sorted(accepted | {member.serial for member in members}):
            end = self.expected_end(serial).end
            places = [str(member) for member in members if member.serial == serial]
            if end in ("dead", "interrupted"):
                if places != [f"main/{end}"]:
                    self._add_problem("at the end", f"job {serial} is in {places or 'no key'}, not in {end}")
            elif places:
                self._add_problem("at the end", f"job {serial} is in {places}")
            if serial in accepted and not {"done": ended, "gone": failed}.get(end, Counter({serial: 1}))[serial]:
                self._add_problem("at the end", f"job {serial} never {'ended' if end == 'done' else 'failed'}")
            if end in ("retired", "refused", "interrupted") and begun[serial]:
                self._add_problem("at the end", f"job {serial} ran")

    def _runs(self, notes: list[Note]) -> None:
        """Check that a job ran again only if it was running, or its acknowledgement was unconfirmed, when its process
        died.
        """
        runs, failed = _by_jid(notes, "begun"), _failures(notes)
        serials = {note.words: note.about for note in notes if note.kind == "begun"}
        for jid, number in runs.items():
            serial = serials[jid]
            if number > 1 + self._by_right(serial, failed[jid]) + self.repeats[jid]:
                self._add_problem(
                    "at the end", f"job {serial} ran {number} times, and {self.repeats[jid]} runs were cut off"
                )
            if number > self._over.get(jid, number):
                self._add_problem("at the end", f"job {serial} ran again after it was in no key")
        doubted = count(notes, "doubted")
        for serial, number in Counter(serials.values()).items():
            if number > 1 + doubted[serial]:
                self._add_problem(
                    "at the end", f"job {serial} was pushed {number} times, and {doubted[serial]} were in doubt"
                )

    def _by_right(self, serial: int, failed: int) -> int:
        """Return how many of the failed runs of a job are followed by another."""
        return failed if self.expected_end(serial).end == "done" else 0

    def _last_states(self, notes: list[Note]) -> None:
        words = self._state_words()
        begun = {note.words: note.about for note in notes if note.kind == "begun"}
        # Without its id: the job of a tick.
        accepted = {note.words: note.about for note in notes if note.kind == "accepted" and note.words}
        for jid, serial in {**begun, **accepted}.items():
            state = self.expected_end(serial).state
            if state is not None and words.get(jid) != state.encode():
                self._add_problem("at the end", f"the state of job {serial} is {words.get(jid)!r}, not {state}")

    def _retired(self, notes: list[Note]) -> None:
        wanted = sum(self.expected_end(note.about).end == "retired" for note in notes if note.kind == "accepted")
        found = sum(self._counted().values())
        if found != wanted:
            self._add_problem("at the end", f"{found} jobs of the retired class are counted, not {wanted}")

    def _batch(self) -> None:
        """Check that a batch has counted each job once: its jobs have all succeeded."""
        for client in self.environment.clients.values():
            key = batch_keys.batch(BATCH)
            found = cast("dict[bytes, bytes]", client.hgetall(key))
            if found and (found[b"pending"] != b"0" or b"success_at" not in found or client.exists(f"{key}:failed")):
                self._add_problem("at the end", f"the batch has counted {found}")
            client.delete(key)

    def _keys(self) -> None:
        """Remove the keys that may stay (docs/reference/keys.md, Census), and report the rest."""
        for name, client in self.environment.clients.items():
            allowed = {keys.DEAD.encode(), keys.INTERRUPTED.encode(), keys.RETIRED.encode()}
            for key in cast("list[bytes]", client.keys("*")):
                # The states of the schedule stay, and the lease of a killed leader lasts 6 s.
                if (
                    key in allowed
                    or key.startswith((b"aw:cron", b"aw:leader:"))
                    or (
                        key.startswith((b"aw:status:", b"aw:transferred:", b"aw:push:", b"aw:deleted"))
                        and 0 < _ttl(client, key) <= 90_000
                    )
                ):
                    client.delete(key)
            self.problems += [f"at the end: left on {name}: {leak}" for leak in leaks(client)]
        self.problems += [f"at the end: still registered: {name}" for name in self.environment.registered()]

    def _death_handlers(self, notes: list[Note]) -> None:
        """Check that death handlers were called once for each job given up; a killed process may not have called them."""
        failed, handled = count(notes, "failed"), count(notes, "death handled")
        for serial, times in failed.items():
            expected_end = self.expected_end(serial)
            wanted = times if expected_end.end in ("dead", "gone") and expected_end.state != "discarded" else 0
            if not (handled[serial] == wanted or (self._deaths and handled[serial] < wanted)):
                self._add_problem("at the end", f"death handlers were called {handled[serial]} times of job {serial}")

    # --- reading

    def _members(self) -> list[Member]:
        found: list[Member] = []
        for shard, client in self.environment.clients.items():
            for key in cast("list[bytes]", client.keys("*")):
                if place_of(key) is not None:
                    listed = client.zrange(key, 0, -1) if client.type(key) == b"zset" else client.lrange(key, 0, -1)
                    found += [
                        _member(shard, key.decode(), data)
                        for element in cast("list[bytes]", listed)
                        for data in jobs_in(payload_in(key, element))
                    ]
            # A deleted job may come back: until then it is there. Those of which none does are over.
            deleted = [data.partition(b"\n")[2] for data in cast("list[bytes]", client.zrange(keys.DELETED, 0, -1))]
            members = [_member(shard, keys.DELETED, data) for data in deleted]
            found += [one for one in members if self.expected_end(one.serial).end != "refused"]
            names = cast("list[tuple[bytes, float]]", client.zrange(keys.DEFERRED_PACKED, 0, -1, withscores=True))
            packed = (job for jobs in read_jobs(client, names) for job in jobs)
            found += [_member(shard, keys.DEFERRED_PACKED, job.data) for job in packed]
        return found

    def _state_words(self) -> dict[str, bytes]:
        client, prefix = self.environment.clients["main"], keys.status("")
        names = cast("list[bytes]", client.keys(f"{prefix}*"))
        return {name.decode().removeprefix(prefix): cast("bytes", client.get(name)) for name in names}

    def _counted(self) -> dict[bytes, int]:
        found = cast("dict[bytes, bytes]", self.environment.clients["main"].hgetall(keys.RETIRED))
        return {name: int(number) for name, number in found.items()}

    def _add_problem(self, when: str, problem: str) -> None:
        self.problems.append(f"{when}: {problem}")


def _member(shard: str, key: str, data: bytes) -> Member:
    unreadable = _UNREADABLE.fullmatch(unwrapped(data))
    if unreadable:
        return Member(shard, key, int(unreadable[1]), "", data)
    payload = json.loads(data)
    return Member(shard, key, payload["args"][0], payload["jid"], data)


def _crossing(places: list[Member]) -> bool:
    """Return whether a job is being transferred to another shard: marked in its set here, and written there."""
    marked = [member for member in places if TRANSFER.encode() in member.data]
    return len(places) == 2 and len(marked) == 1 and len({member.shard for member in places}) == 2


def _by_jid(notes: list[Note], kind: str) -> Counter[str]:
    return Counter(note.words for note in notes if note.kind == kind)


def _failures(notes: list[Note]) -> Counter[str]:
    """Return by jid how many runs failed, were snoozed, or stopped early: another run follows each of them."""
    runs: dict[int, str] = {}
    failures: Counter[str] = Counter()
    for note in notes:
        if note.kind == "begun":
            runs[note.about] = note.words
        elif note.kind == "failed":
            failures[runs[note.about]] += 1
    return failures


def _ttl(client: Redis, key: bytes) -> int:
    return cast("int", client.ttl(key))
