"""What is seen after a step, and what of it is judged beside the ways of the single jobs: owners, takers, runs, pauses, bounds."""

from collections import Counter
from collections.abc import Iterator

from framework.errors import BusinessError
from framework.execute.execution import Execution
from framework.fetch.in_flight import MAX_UNACKNOWLEDGED
from framework.fetch.prefetch import AHEAD_JOBS
from framework.fetch.unit_of_work import UnitOfWork
from framework.finish.outcome import Failed, Malformed, Snoozed, UnknownClass
from framework.wire import keys
from tests.proofs.machine.interleaving import Act
from tests.proofs.machine.job_model import Broken, Contents, JobModel, Look, spots_of
from tests.proofs.machine.servers import SHARDS, Servers
from tests.proofs.machine.worker import LIMIT, SERVED, SLOTS, Worker
from tests.proofs.places import jid_of

MOST_AT_ONCE = SLOTS + AHEAD_JOBS + MAX_UNACKNOWLEDGED + len(SERVED)
"""Jobs in one working list: running, fetched ahead, ended and unacknowledged, and what parked calls brought."""


class StateChecks:
    """Of one history."""

    def __init__(self, servers: Servers) -> None:
        self.model = JobModel()
        self._servers = servers
        self._starts: list[tuple[Worker, bytes]] = []
        self._ends: list[tuple[Worker, bytes, set[str]]] = []
        self._lost = 0
        self._registered: set[str] = set()
        self._struck_off: set[str] = set()
        """Who was known once, and is not now."""
        self._rested: set[bytes] = set()
        """Jobs that have been dead, or set aside."""
        self._held: set[tuple[bytes, str]] = set()
        """The jobs in the hands of those who are known, at the last look."""

    def expect_lost_reply(self) -> None:
        """A reply is lost, and the jobs it brought lie in a working list until they are found there."""
        self._lost += MOST_AT_ONCE

    def started(self, worker: Worker, unit: UnitOfWork) -> None:
        """A job is about to run there."""
        self._starts.append((worker, jid_of(unit.data)))

    def ended(self, worker: Worker, run: Execution) -> None:
        """It has run there."""
        self._ends.append((worker, jid_of(run.unit.data), _targets(run)))

    def runs(self) -> None:
        """Whoever starts a job has it in its working list at that moment; whose run has ended may move it."""
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
        """Of limited jobs no more run than may, those left out that somebody else has taken over."""
        counts: Counter[tuple[str, str]] = Counter()
        for worker, jid in performing:
            job = self.model.jobs.get(jid.encode())
            spot = next((spot for spot in job.spots if spot.key == worker.list), None) if job is not None else None
            if spot is not None and spot.limited:
                counts[worker.shard, spot.limited] += 1
        for (shard, name), number in counts.items():
            if number > LIMIT:
                raise Broken(f"I10: {number} jobs of {name} run on {shard}")

    def look(self, workers: list[Worker], *, by: Act | None, rebase: bool, operator: bool) -> list[str]:
        """Check what is there now, after a step of ``by``; return what moved. On a server that is down all is as it was."""
        found: Look = {}
        now: dict[str, float] = {}
        registered: set[str] = set()
        held: list[tuple[str, bytes, bytes]] = []
        for name in SHARDS:
            if not self._servers.is_up(name):
                self._remember(name, found, registered)
                continue
            now[name], contents = self._servers.look(name)
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

    def _remember(self, name: str, found: Look, registered: set[str]) -> None:
        for jid, job in self.model.jobs.items():
            for spot in job.spots:
                if spot.shard == name:
                    found.setdefault(jid, []).append(spot)
                    registered.add(spot.owner)

    def _check_bounds(self, contents: Contents) -> None:
        for key, members in contents:
            if key.startswith(b"aw:working:") and len(members) > MOST_AT_ONCE + self._lost:
                raise Broken(f"I16: {key!r} holds {len(members)} jobs")

    def _check_holdings(self, found: Look, held: list[tuple[str, bytes, bytes]]) -> None:
        """A lock is that of a job which may run; a slot that of one in the hands of the process it names, or about to be."""
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

    def _check_twins(self, found: Look) -> None:
        """Of equal jobs one is alive on a shard, those left out that an operator has sent back, and that come from there."""
        alive = [(jid, spot) for jid, spots in found.items() for spot in spots if spot.duplicates]
        self._rested |= {jid for jid, spot in alive if spot.kind in ("dead", "interrupted")}
        bound = [(jid, spot) for jid, spot in alive if jid not in self._rested and b'"idempotency_key"' in spot.data]
        for shard in SHARDS:
            twins = {jid for jid, spot in bound if spot.shard == shard and b'"duplicate-of"' not in spot.data}
            if len(twins) > 1:
                raise Broken(f"I9: equal jobs are alive on {shard}: {sorted(twins)}")

    def _check_owners(self, found: Look, registered: set[str]) -> None:
        """Who holds a job is known. Only who was struck off may be given one before the next sweep enters it again."""
        self._struck_off = (self._struck_off | self._registered) - registered
        self._registered = registered
        held = {(jid, spot.owner) for jid, spots in found.items() for spot in spots if spot.owner}
        for jid, owner in held:
            if owner not in registered and (owner not in self._struck_off or (jid, owner) in self._held):
                raise Broken(f"I8: {jid!r} is in the hands of {owner}, of whom nobody knows")
        self._held = {(jid, owner) for jid, owner in held if owner in registered}

    def _check_takers(self, workers: list[Worker], found: Look, by: Act) -> None:
        """Nobody takes a job out of the hands of a process that lives and beats, or that had no chance to beat."""
        if not isinstance(by.owner, Worker):
            return
        for worker in workers:
            if worker is by.owner or worker.frozen or worker.slept:
                continue
            for jid, job in self.model.jobs.items():
                held = any(spot.key == worker.list for spot in job.spots)
                if held and not any(spot.key == worker.list for spot in found.get(jid, [])):
                    raise Broken(f"I3: {jid!r} is taken by {by.owner} from {worker}, which lives")

    def _check_pause(self, found: Look, by: Act) -> None:
        """A fetch that was made up after its process knew of a pause takes nothing from that queue."""
        paused = {f"queue:{name}".encode() for name in by.paused}
        if not paused or not isinstance(by.owner, Worker):
            return
        for jid, job in self.model.jobs.items():
            waited = any(spot.key in paused and spot.shard == by.owner.shard for spot in job.spots)
            if waited and any(spot.key == by.owner.list for spot in found.get(jid, [])):
                raise Broken(f"I15: {by.owner} takes {jid!r} from a queue that it knows to be paused")


def _holdings(contents: Contents) -> Iterator[tuple[bytes, bytes]]:
    """Keys of locks, and the jobs they are of; keys of running jobs of limits, and their slots."""
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
