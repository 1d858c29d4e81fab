"""Take, renew and release the slots of jobs, of which each limit has a number."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.connect import server_time
from framework.store.script import RELEASE_WAITING, RENEW_SLOTS, TAKE_SLOT
from framework.timings import STANDARD, Timings
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, timestamp
from framework.wire.resources import Slot, reservations, slot_id, slot_member
from framework.wire.sub_queues import start_queue

SlotState: TypeAlias = Literal["taken", "waits", "refused", "fenced"]
_FORGET_AFTER_S = 365 * 86_400
"""Sweeps by an operator never make a shard forget a limit that no process knows."""

_BATCH = 100
_STATES: dict[int, SlotState] = {1: "taken", 0: "waits", 2: "refused", -1: "fenced"}


class SlotResult(NamedTuple):
    """The result of a request for a slot: slots taken, the limit that applies, and the waiting jobs of the same scope."""

    state: SlotState
    taken: int
    limit: int
    waiting: int

    @classmethod
    def of(cls, state: int, counts: Iterable[int]) -> "SlotResult":
        """Return the result for a state of the scripts and their three counts."""
        return cls(_STATES[state], *counts)


# Decision 126: slots are work-conserving, first-come first-served, and leased.
class LimitSlots:
    """Take slots for the jobs of one process. Safe to call from any thread; raises redis errors."""

    def __init__(self, client: "redis.Redis", identity: str, timings: Timings = STANDARD) -> None:
        self._client = client
        self.owner = identity
        """The owner of the working list of the jobs."""
        self.ttl_s = timings.slot_ttl_s
        """A slot that is not renewed for this long is free. Slots of a dead process are freed much earlier, with its jobs."""

    def slot_of(self, unit: UnitOfWork, payload: Payload, name: str) -> Slot:
        """Return the slot that a job of this process takes of the limit ``name``."""
        return Slot(keys.limit(name), slot_member(self.owner, slot_id(payload, unit.data)))

    def record(self, unit: UnitOfWork, slot: Slot) -> None:
        """Add a slot to the unit's resources, before it is requested.

        So the slot is released even if the reply is lost, or if another thread returns the job meanwhile.
        """
        resources = unit.own_resources()
        if slot not in resources.slots:
            resources.slots.append(slot)

    def take(
        self,
        unit: UnitOfWork,
        payload: Payload,
        name: str,
        limit: int,
        *,
        scope: str = "",
        share: int = 0,
        may_wait: bool = True,
    ) -> SlotResult:
        """Take a slot of the limit ``name`` (a class's wire name, or ``queue/NAME``) for a job in flight, in one round trip.

        ``limit`` is 0 for no limit and negative for a pause. ``share`` is the maximum of slots for one ``scope``, 0 for
        no maximum. Without a free slot, the job leaves the working list and waits; with ``may_wait=False`` it is
        refused and nothing changes. The unit holds a slot that was taken, and releases it with its other resources.
        """
        resources = unit.own_resources()
        slot, jid = self.slot_of(unit, payload, name), slot_id(payload, unit.data)
        base = slot.base
        others = resources.on_hold() if resources.lock is not None or resources.slots else ""
        since = timestamp(payload.get(BUFFERED_AT))
        waiting_since = "" if since is None else f"{since:.6f}"
        mode = "wait" if may_wait else "refuse"
        arguments = [
            unit.data,
            slot.member,
            jid,
            start_queue(unit.queue, payload),
            limit,
            self.ttl_s,
            waiting_since,
            scope,
            share,
            mode,
            others,
        ]
        self.record(unit, slot)
        reply: Any = TAKE_SLOT(self._client, [keys.working(self.owner), base], arguments)
        state, *counts = reply
        result = SlotResult.of(state, counts)
        resources.note_answer(slot, jid, taken=result.state == "taken")
        return result


def release_reservation(unit: UnitOfWork, payload: Payload, name: str) -> None:
    """Add to the unit's resources a slot that may be reserved for the job, so that the end of the job releases it."""
    unit.own_resources().slots += reservations(payload, unit.data, (name,))


def renew_slots(client: "redis.Redis", units: Iterable[UnitOfWork], ttl_s: int) -> None:
    """Renew the slots that these jobs hold for ``ttl_s``; send nothing if they hold none. Raises redis errors."""
    # Each attribute is read once: the thread of the job may replace it at any time.
    held = [slot for unit in units if (resources := unit.resources) is not None for slot in tuple(resources.slots)]
    if held:
        RENEW_SLOTS(client, [f"{slot.base}:running" for slot in held], [ttl_s, *(slot.member for slot in held)])


def assign_free_slots(client: "redis.Redis", name: str) -> tuple[int, int]:
    """Free slots that are not renewed, and release waiting jobs; return the jobs released and the slots freed.

    It releases only what the limit allows, as the end of a job and the sweep of a process do. After an outage no slot
    counts as expired until heartbeats have arrived for a while. Raises redis errors; jobs released until then are in
    their queues.
    """
    released = freed = 0
    running = keys.limit(name) + ":running"
    while True:
        now = server_time(client)
        stale: Any = client.zcount(running, "-inf", now)
        reply: Any = RELEASE_WAITING(client, [keys.limit(name)], ["", "0", str(_BATCH), str(_FORGET_AFTER_S)])
        left: Any = client.zcount(running, "-inf", now)
        released += int(reply[0])
        freed += max(0, stale - left)
        if int(reply[0]) < _BATCH and stale - left < _BATCH:
            return released, freed
