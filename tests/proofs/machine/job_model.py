"""Check the invariants of every job at every instant, against the contents of the servers.

A job is known from the moment it is first seen in a key; it is owed until a run of it has ended and it was
acknowledged. The invariants have the numbers of the reference: I1 no loss, I2 one place (two during a transfer to
another shard), I3 one owner, I4 no run after the end, I5 its bytes, I6 its counts, I12 its order, I13 not before its
time, I15 not from a paused queue, I17 the sum. A move that no row of the table of transitions allows breaks an
invariant too.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.proofs.places import HELD, jid_of, payload_in, place_of, readable, transit, unwrapped

_PAUSED_JOBS = b"aw:paused_jobs:"


class Broken(AssertionError):
    """An invariant does not hold."""


class Spot(NamedTuple):
    """The place of a job: shard, key, distance from the end that runs next, its bytes, its score."""

    shard: str
    key: bytes
    rank: int
    data: bytes
    score: float

    @property
    def kind(self) -> str:
        """Return queue, working, held, or the name of a sorted set."""
        if place_of(self.key) == HELD:
            return "held"
        text = self.key.decode(errors="replace")
        return "queue" if text.startswith("queue:") else "working" if self.owner else text

    @property
    def limited(self) -> str:
        """Return its class, if that has a concurrency limit; else empty."""
        return next((name for name in _LIMITED if b'"class":"%b"' % name.encode() in self.data), "")

    @property
    def duplicates(self) -> bool:
        """Return whether it is of the class whose jobs are all equal."""
        return b'"class":"Keyed"' in self.data

    @property
    def owner(self) -> str:
        """Return the process whose working list it is; empty for other places."""
        return self.key[len(_WORKING) :].decode() if self.key.startswith(_WORKING) else ""


JobSpots = dict[bytes, list[Spot]]
"""The places of each job."""

Contents = list[tuple[bytes, list[bytes] | list[tuple[bytes, float]]]]

_CHANGING = {
    *("retry_count", "failed_at", "retried_at", "error_class", "error_message", "error_backtrace", "interrupted_count"),
    "aw_death_count",
    *(
        "aw_suspect",
        "enqueued_at",
        "scheduled_at",
        "at",
        "aw_transfer",
        "queue",
        "discarded_at",
        "concurrency_limit_buffered_at",
    ),
    *("idempotency_key", "duplicate-of", "aw_unknown_class_count", "aw_unknown_class_since"),
}
"""The fields of a payload that the framework writes."""

_LIMITED = ("Limited", "Keyed")
_DUE = ("schedule", "retry")
_WORKING = b"aw:working:"

_MOVES = {
    ("queue", "working"),
    *((source, target) for source in ("working", *_DUE) for target in ("queue", "dead")),
    *(("working", target) for target in (*_DUE, "interrupted")),
    ("working", "held"),
    *((source, "queue") for source in ("held", "dead", "interrupted")),
}
"""Every move within a shard: from, to. An operator moves dead jobs to a queue."""


@dataclass
class ObservedJob:
    """One job and its observed places."""

    first: bytes
    spots: list[Spot] = field(default_factory=list[Spot])
    over: bool = False
    crossed: bool = False
    """True if it was transferred to another shard."""
    arrived: int = 0
    """The order of its arrival in its queue; 0 while it is in none, or after it was fetched and returned."""
    permits: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """By process: the places to which its run there may move it, ``over`` included."""


def spots_of(shard: str, contents: Contents) -> Iterable[tuple[bytes, Spot]]:
    """Yield every job in the places of one server."""
    for key, members in contents:
        if place_of(key) is None:
            continue
        count = len(members)
        for index, member in enumerate(members):
            data, score = member if isinstance(member, tuple) else (member, 0.0)
            rank = index if isinstance(member, tuple) else count - 1 - index
            data = unwrapped(payload_in(key, data))
            yield jid_of(data), Spot(shard, key, rank, data, score)


class JobModel:
    """Checks each step by the contents before and after it."""

    def __init__(self) -> None:
        self.jobs: dict[bytes, ObservedJob] = {}
        self._arrivals = 0

    def permit(self, jid: bytes, owner: str, targets: set[str]) -> None:
        """Allow this process, in which a run of the job has ended, to move it to one of these places."""
        job = self.jobs.get(jid)
        if job is not None:
            job.permits.setdefault(owner, set()).update(targets)

    @property
    def owed(self) -> list[bytes]:
        """Return the jobs that must be in some place."""
        return [jid for jid, job in self.jobs.items() if not job.over]

    def see(self, job_spots: JobSpots, now: dict[str, float], *, operator: bool = False) -> list[str]:
        """Check one command since the last observation; ``now`` is each server's clock. Return the moves, in words."""
        changed = [
            (jid, job_spots.get(jid, []))
            for jid in dict.fromkeys([*self.jobs, *job_spots])
            if jid not in self.jobs or self.jobs[jid].spots != job_spots.get(jid, [])
        ]
        for jid, spots in changed:
            self.jobs.setdefault(jid, ObservedJob(spots[0].data if spots else b""))
        moved = [(jid, spots) for jid, spots in changed if _bare(self.jobs[jid].spots) != _bare(spots)]
        for jid, spots in moved:
            self._check(jid, self.jobs[jid], spots, now, operator=operator)
        self._check_order(moved, job_spots)
        moves = [f"{jid[-4:]!r}: {_text_of(self.jobs[jid].spots)} -> {_text_of(spots)}" for jid, spots in moved]
        self.rebase(job_spots)
        return moves

    def rebase(self, job_spots: JobSpots) -> None:
        """Accept the current contents: the clock was moved."""
        for jid, job in self.jobs.items():
            job.spots = job_spots.get(jid, [])

    def _check(self, jid: bytes, job: ObservedJob, spots: list[Spot], now: dict[str, float], *, operator: bool) -> None:
        self._single(jid, spots)
        if not job.spots:
            self._must(not job.over, "I4", jid, f"has ended and is back, in {_text_of(spots)}")
            return
        for spot in spots:
            if not operator:
                self._check_bytes(jid, job, spot)
        came = [spot for spot in spots if spot.shard not in {before.shard for before in job.spots}]
        for spot in came:
            away = [transit(before.data) is not None for before in job.spots]
            self._must(
                any(away) and spot.kind in ("queue", "working"),
                "I2",
                jid,
                f"came to {_text_of(spots)} by no permitted move",
            )
            job.crossed = True
        for before in job.spots:
            after = [spot for spot in spots if spot.shard == before.shard]
            self._check_move(jid, job, before, after[0] if after else None, now[before.shard], operator=operator)
        job.over = not spots

    def _single(self, jid: bytes, spots: list[Spot]) -> None:
        if not readable(jid):
            return
        marked = [spot for spot in spots if transit(spot.data) is not None and spot.kind in _DUE]
        most = 2 if marked else 1
        self._must(len(spots) <= most, "I2", jid, f"is in {len(spots)} places: {_text_of(spots)}")
        self._must(
            len({spot.shard for spot in spots}) == len(spots), "I2", jid, f"is twice on a shard: {_text_of(spots)}"
        )
        owners = [spot for spot in spots if spot.kind == "working"]
        self._must(len(owners) <= 1, "I3", jid, f"is in {len(owners)} working lists")

    def _check_move(
        self, jid: bytes, job: ObservedJob, before: Spot, after: Spot | None, now: float, *, operator: bool
    ) -> None:
        if after is not None and (before.key, before.data) == (after.key, after.data):
            return
        source, target = before.kind, "over" if after is None else after.kind
        if target == "over":
            self._check_end(jid, job, before)
        elif before.key != after.key:  # type: ignore[union-attr]
            # The server gives a job that arrives in a queue to a blocking call at once.
            allowed = (source, target) in _MOVES or (target == "working" and (source, "queue") in _MOVES)
            allowed = allowed and (operator or source not in ("dead", "interrupted"))
            self._must(allowed, "I1", jid, f"went from {before.key!r} to {after.key!r}, which no step does")  # type: ignore[union-attr]
        if source in _DUE and target in ("queue", "working"):
            self._must(before.score <= now, "I13", jid, f"was due at {before.score}, and it is {now}")
        if source == "working" and target in ("retry", "schedule", "over"):
            permits = job.permits.get(before.owner, set())
            rule = "I1" if target == "over" else "I4"
            self._must(target in permits, rule, jid, f"went from {before.key!r} to {target}; its run there: {permits}")
        if target == "working":
            job.permits.pop(after.key.decode().removeprefix("aw:working:"), None)  # type: ignore[union-attr]

    def _check_end(self, jid: bytes, job: ObservedJob, before: Spot) -> None:
        if before.kind in _DUE and before.duplicates and self._has_twin(jid):
            return
        crossed = before.kind in _DUE and transit(before.data) is not None
        self._must(before.kind == "working" or crossed, "I1", jid, f"is in no key any more; it was in {before.key!r}")
        self._must(job.crossed or not crossed, "I1", jid, "was removed here, and was never on its new shard")

    def _has_twin(self, jid: bytes) -> bool:
        """Return whether another job of its class exists, as whose duplicate a due job may be dropped."""
        alive = [spot for other, job in self.jobs.items() if other != jid for spot in job.spots]
        return any(other.duplicates and other.kind not in ("dead", "interrupted") for other in alive)

    def _check_bytes(self, jid: bytes, job: ObservedJob, spot: Spot) -> None:
        if not readable(jid):
            return
        was, now = _fields(job.first), _fields(spot.data)
        kept = {name: value for name, value in was.items() if name not in _CHANGING}
        found = {name: value for name, value in now.items() if name not in _CHANGING}
        self._must(list(kept.items()) == list(found.items()), "I5", jid, f"was {job.first!r}, is {spot.data!r}")
        last = _fields(job.spots[-1].data)
        for name in ("retry_count", "interrupted_count", "aw_death_count"):
            before, after = last.get(name), now.get(name)
            fell = isinstance(before, int) and (not isinstance(after, int) or after < before)
            self._must(not fell or transit(spot.data) is not None, "I6", jid, f"{name} fell from {before} to {after}")

    def _check_order(self, moved: list[tuple[bytes, list[Spot]]], job_spots: JobSpots) -> None:
        """Check that jobs of a queue are first fetched in the order of their arrival, and that returned jobs are next."""
        arrivals: list[tuple[int, bytes]] = []
        taken: dict[tuple[str, bytes], int] = {}
        for jid, spots in moved:
            job = self.jobs[jid]
            queued = [spot for spot in spots if spot.kind == "queue"]
            was = [spot for spot in job.spots if spot.kind in ("queue", "working", "held")]
            # release_paused.lua puts the jobs of a pause behind all others, as if they arrived now.
            if queued and (not was or was[0].key.startswith(_PAUSED_JOBS)):
                arrivals.append((queued[0].rank, jid))
            elif queued and was[0].kind != "queue":
                self._check_return(jid, queued[0], job_spots)
            elif was and job.arrived and not queued:
                place = (was[0].shard, was[0].key)
                taken[place] = max(taken.get(place, 0), job.arrived)
                job.arrived = 0
        for place, youngest in taken.items():
            self._check_taken(place, youngest)
        for _, jid in sorted(arrivals):  # of jobs that arrived at once, the next one to run came first
            self._arrivals += 1
            self.jobs[jid].arrived = self._arrivals

    def _check_taken(self, place: tuple[str, bytes], youngest: int) -> None:
        for jid, job in self.jobs.items():
            waits = 0 < job.arrived < youngest and any((spot.shard, spot.key) == place for spot in job.spots)
            self._must(not waits, "I12", jid, f"waits in {place[1]!r}, and one that came later was taken")

    def _check_return(self, jid: bytes, spot: Spot, job_spots: JobSpots) -> None:
        for other, spots in job_spots.items():
            ahead = any(s.key == spot.key and s.shard == spot.shard and s.rank < spot.rank for s in spots)
            self._must(
                not (self.jobs[other].arrived and ahead),
                "I12",
                jid,
                f"came back to {spot.key!r} behind one that was never fetched",
            )

    def _must(self, holds: bool, rule: str, jid: bytes, what: str) -> None:  # noqa: FBT001 - as assert
        if not holds:
            raise Broken(f"{rule}: job {jid.decode(errors='backslashreplace')} {what}")


def _bare(spots: list[Spot]) -> list[tuple[str, bytes, bytes, float]]:
    return sorted((spot.shard, spot.key, spot.data, spot.score) for spot in spots)


def _text_of(spots: list[Spot]) -> str:
    return (
        "nowhere"
        if not spots
        else ", ".join(f"{spot.key.decode(errors='backslashreplace')} of {spot.shard}" for spot in spots)
    )


def _fields(data: bytes) -> dict[str, Any]:
    # Keep the kinds of numbers: 1 is not 1.0, and no digit of a large one may be lost.
    loaded: dict[str, Any] = json.loads(data, parse_float=lambda text: ("float", float(text)))
    return loaded
