"""Check the contents after a step, besides the ways of single jobs: owners, reclaims, runs, pauses, bounds."""

from collections import Counter
from collections.abc import Iterator

from framework.errors import BusinessError
from framework.execute.execution import Execution
from framework.fetch.queues import AHEAD_JOBS
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, Malformed, Snoozed, UnknownClass
from framework.recover.suspects import MAX_UNACKNOWLEDGED
from framework.wire import keys
from tests.proofs.machine.interleaving import Act
from tests.proofs.machine.job_model import Broken, Contents, JobModel, JobSpots, spots_of
from tests.proofs.machine.servers import SHARDS, Servers
from tests.proofs.machine.worker import LIMIT, SERVED, SLOTS, Worker
from tests.proofs.places import jid_of

MOST_AT_ONCE = SLOTS + AHEAD_JOBS + MAX_UNACKNOWLEDGED + len(SERVED)
"""The most jobs in one working list: running, prefetched, ended and unacknowledged, and those of blocking calls."""


class StateChecks:
    """The checks of one history."""

    def __init__(self, servers: Servers) -> None:
        self.model = JobModel()
        self._servers = servers
        self._starts: list[tuple[Worker, bytes]] = []
        self._ends: list[tuple[Worker, bytes, set[str]]] = []
        self._lost = 0
        self._registered: set[str] = set()
        self._struck_off: set[str] = set()
        """The processes that were registered once, and are not now."""
        self._rested: set[bytes] = set()
        """The jobs that have been dead, or interrupted."""
        self._held: set[tuple[bytes, str]] = set()
        """The jobs in the working lists of registered processes, at the last observation."""

    def expect_lost_reply(self) -> None:
        """Expect that the jobs of a lost reply stay in a working list until they are found there."""
        self._lost += MOST_AT_ONCE

    def started(self, worker: Worker, unit: UnitOfWork) -> None:
        """Record that a job is about to run in a process."""
        self._starts.append((worker, jid_of(unit.data)))

    def ended(self, worker: Worker, run: Execution) -> None:
        """Record that a job has run in a process."""
        self._ends.append((worker, jid_of(run.unit.data), _targets(run)))

    def runs(self) -> None:
        """Check that a process that starts a job has it in its working list; its run may move it after its end."""
        starts, self._starts = self._starts, []
        ends, self._ends = self._ends, []
        for worker, jid in starts:
            job = self.model.jobs.get(jid)
            places = [spot.key for spot in job.spots] if job is not None else []
            if self._servers.is_up(worker.shard) and worker.list not in places:
                raise Broken(f"I3: {worker} starts {jid!r}, which is in {places}")
        for worker, jid, targets in ends:
            self.model.permit(jid, worker.identity, targets)

    def at_work(self, performing: list[tuple[Worker, str]]) -> None:
        """Check that no more limited jobs run than allowed, without those that another process has reclaimed."""
        counts: Counter[tuple[str, str]] = Counter()
        for worker, jid in performing:
            job = self.model.jobs.get(jid.encode())
            spot = next((spot for spot in job.spots if spot.key == worker.list), None) if job is not None else None
            if spot is not None and spot.limited:
                counts[worker.shard, spot.limited] += 1
        for (shard, name), number in counts.items():
            if number > LIMIT:
                raise Broken(f"I10: {number} jobs of {name} run on {shard}")

    def check(self, workers: list[Worker], *, by: Act | None, rebase: bool, operator: bool) -> list[str]:
        """Check the current contents, after a step of ``by``; return the moves. A server that is down has its last
        contents.
        """
        found: JobSpots = {}
        now: dict[str, float] = {}
        registered: set[str] = set()
        held: list[tuple[str, bytes, bytes]] = []
        for name in SHARDS:
            if not self._servers.is_up(name):
                self._remember(name, found, registered)
                continue
            now[name], contents = self._servers.read(name)
            for jid, spot in spots_of(name, contents):
                found.setdefault(jid, []).append(spot)
            members = next((members for key, members in contents if key == keys.REGISTRY.encode()), [])
            registered |= {identity.decode() for identity, _ in members}
            self._check_bounds(contents)
            held += [(name, key, whose) for key, whose in _holdings(contents)]
        self._check_holdings(found, held)
        self._check_twins(found)
        self._check_owners(found, registered)
        if rebase:
            self.model.rebase(found)
            return []
        if by is not None:
            self._check_takers(workers, found, by)
            self._check_pause(found, by)
        return self.model.see(found, now, operator=operator)

    def _remember(self, name: str, found: JobSpots, registered: set[str]) -> None:
        for jid, job in self.model.jobs.items():
            for spot in job.spots:
                if spot.shard == name:
                    found.setdefault(jid, []).append(spot)
                    registered.add(spot.owner)

    def _check_bounds(self, contents: Contents) -> None:
        for key, members in contents:
            if key.startswith(b"aw:working:") and len(members) > MOST_AT_ONCE + self._lost:
                raise Broken(f"I16: {key!r} holds {len(members)} jobs")

    def _check_holdings(self, found: JobSpots, held: list[tuple[str, bytes, bytes]]) -> None:
        """Check that a lock belongs to a job that may run, and a slot to a job in the working list of its process."""
        for shard, key, whose in held:
            identity, _, jid = whose.rpartition(b" ")
            spots = [spot for spot in found.get(jid, []) if spot.kind not in ("dead", "interrupted")]
            if not spots:
                raise Broken(
                    f"{'I9' if _is_lock(key) else 'I10'}: {key!r} on {shard} is held by {whose!r}, which will not run"
                )
            if identity and (shard, identity.decode()) not in [(spot.shard, spot.owner) for spot in spots]:
                raise Broken(
                    f"I10: {whose!r} has a slot in {key!r} on {shard}, and is in {[spot.key for spot in spots]}"
                )
        for (shard, key), taken in Counter((shard, key) for shard, key, _ in held if not _is_lock(key)).items():
            if taken > LIMIT:
                raise Broken(f"I10: {taken} slots of {key!r} on {shard} are taken")

    def _check_twins(self, found: JobSpots) -> None:
        """Check that only one of equal jobs exists on a shard, without those that an operator retried or that come from
        another shard.
        """
        alive = [(jid, spot) for jid, spots in found.items() for spot in spots if spot.duplicates]
        self._rested |= {jid for jid, spot in alive if spot.kind in ("dead", "interrupted")}
        bound = [(jid, spot) for jid, spot in alive if jid not in self._rested and b'"idempotency_key"' in spot.data]
        for shard in SHARDS:
            equal_jobs = {jid for jid, spot in bound if spot.shard == shard and b'"duplicate-of"' not in spot.data}
            if len(equal_jobs) > 1:
                raise Broken(f"I9: equal jobs are alive on {shard}: {sorted(equal_jobs)}")

    def _check_owners(self, found: JobSpots, registered: set[str]) -> None:
        """Check that the owner of a job is registered. An unregistered process may get a job only before the next sweep
        registers it.
        """
        self._struck_off = (self._struck_off | self._registered) - registered
        self._registered = registered
        held = {(jid, spot.owner) for jid, spots in found.items() for spot in spots if spot.owner}
        for jid, owner in held:
            if owner not in registered and (owner not in self._struck_off or (jid, owner) in self._held):
                raise Broken(f"I8: {jid!r} is in the working list of {owner}, which is not registered")
        self._held = {(jid, owner) for jid, owner in held if owner in registered}

    def _check_takers(self, workers: list[Worker], found: JobSpots, by: Act) -> None:
        """Check that no process reclaims a job from a process that lives and sends heartbeats, or had no chance to send
        one.
        """
        if not isinstance(by.owner, Worker):
            return
        for worker in workers:
            if worker is by.owner or worker.frozen or worker.slept:
                continue
            for jid, job in self.model.jobs.items():
                held = any(spot.key == worker.list for spot in job.spots)
                if held and not any(spot.key == worker.list for spot in found.get(jid, [])):
                    raise Broken(f"I3: {jid!r} is taken by {by.owner} from {worker}, which lives")

    def _check_pause(self, found: JobSpots, by: Act) -> None:
        """Check that a fetch made after its process learned of a pause takes no job from that queue."""
        paused = {f"queue:{name}".encode() for name in by.paused}
        if not paused or not isinstance(by.owner, Worker):
            return
        for jid, job in self.model.jobs.items():
            waited = any(spot.key in paused and spot.shard == by.owner.shard for spot in job.spots)
            if waited and any(spot.key == by.owner.list for spot in found.get(jid, [])):
                raise Broken(f"I15: {by.owner} takes {jid!r} from a queue that it knows to be paused")


def _holdings(contents: Contents) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys of locks with their jobs, and the keys of running jobs of limits with their slots."""
    for key, members in contents:
        if _is_lock(key) or (key.startswith(b"aw:limit:") and key.endswith(b":running")):
            for member in members:
                yield key, member[0] if isinstance(member, tuple) else member


def _is_lock(key: bytes) -> bool:
    return key.startswith(keys.LOCKS.encode())


def _targets(run: Execution) -> set[str]:
    match run.outcome:
        case Failed(error):
            if run.payload is not None and run.payload.get("retry") is False:
                return {"over"}
            return {"dead"} if isinstance(error, BusinessError) else {"retry", "dead"}
        case Snoozed() | UnknownClass():
            return {"schedule"}
        case Malformed():
            return {"dead"}
        case _:
            return {"over"}
