"""Decide which waiting jobs of a shard leave it by a move."""

import re

from framework.declare import registry
from framework.errors import PayloadError
from framework.features.moves.records import MoveRecord
from framework.migrate.plan import KEEP, MigrationPlan, MoveDecision, jid_of, text_of
from framework.route.route_moves import RouteMoves
from framework.route.router import movable_job
from framework.wire.job import TRANSFER, decode
from framework.wire.waiters import awaited_job_of

LEAVES = "LEAVES"
"""The target in the decision about a job that leaves the shard. No queue is meant."""


class MovePlan(MigrationPlan):
    """Decide about the jobs of the source of ``record``; ``moves`` are all moves in force, by which a later one may take a job."""

    def __init__(self, record: MoveRecord, moves: RouteMoves) -> None:
        self._record = record
        self._moves = moves
        # Payloads of other classes are not parsed. JSON may write a name with escapes.
        found = registry.find(record.name) if record.kind == "class" else None
        aliases = () if found is None else found.declaration().aliases
        names = [rb"\\u00", *(re.escape(name.encode()) for name in sorted({record.name, *aliases}))]
        self._may_match = re.compile(b"|".join(names)).search if record.kind == "class" else None

    def covers(self, queue: str) -> bool:  # noqa: ARG002 - a part of a MigrationPlan
        return True

    def decide(self, data: bytes, place: str | None = None) -> MoveDecision:
        """Return whether the job leaves (``LEAVES``), is not part of the move, or stays for a reason."""
        if self._may_match is not None and self._may_match(data) is None:
            return KEEP
        try:
            payload = decode(data)
        except PayloadError:
            # It may be of any class, so it is listed where the whole place moves.
            return KEEP if self._may_match else MoveDecision(reason="unreadable", queue=place or "", jid=jid_of(data))
        named = payload.get("queue")
        queue = place if place is not None else named if isinstance(named, str) else ""
        job = movable_job(payload, queue)
        shard, move = self._moves.last_move(job, self._record.source)
        if shard == self._record.source or move is None or move.id != self._record.id:
            return KEEP
        stays = MoveDecision(queue=queue, worker=payload["class"], jid=text_of(payload.get("jid")))
        if TRANSFER in payload:
            return stays._replace(reason="in transit")
        if self._record.kind != "class" and registry.find(payload["class"]) is None:
            return stays._replace(reason="unknown class")
        awaited = awaited_job_of(payload)
        if awaited is not None and not awaited.may_move:
            return stays._replace(reason="awaited")
        return stays._replace(target=LEAVES)
