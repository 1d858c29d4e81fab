"""Slots of concurrency limits: taking one for a job in flight, and keeping those that this process has."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, TypeAlias

import redis

from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import RENEW_SLOTS, TAKE_SLOT
from framework.types import Payload
from framework.wire import keys
from framework.wire.job import BUFFERED_AT, timestamp
from framework.wire.resources import JobResources, Slot, reservations, slot_id, slot_member

SLOT_TTL_S = 180
"""After so long without renewal a slot is free: longer than the silence that a parent tolerates of a child (120 s, see
``renew_children.lua``). A dead process's slots go with its jobs, long before."""

SlotState: TypeAlias = Literal["taken", "waits", "refused", "fenced"]
_STATES: dict[int, SlotState] = {1: "taken", 0: "waits", 2: "refused", -1: "fenced"}


class SlotResult(NamedTuple):
    """What became of a job at a limit; how many slots are taken, the limit that holds, and how many of its scope wait."""

    state: SlotState
    taken: int
    limit: int
    waiting: int


class LimitSlots:
    """Those of one process. Safe to call from any thread; raises redis errors."""

    def __init__(self, client: "redis.Redis", identity: str) -> None:
        self._client = client
        self._identity = identity

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
        """Take a slot of the limit ``name`` (a class's wire name, or ``queue/NAME``) for a job in flight: one round trip.

        ``limit`` is 0 for none and below 0 for a pause, ``share`` the most slots of one ``scope``, 0 for no such limit. Where
        there is no slot the job has left the working list and waits for one, or, without ``parks``, it is refused and nothing
        has changed. A slot that was taken is among what the unit holds, and free when that is let go of.
        """
        base, jid = keys.limit(name), slot_id(payload, unit.data)
        slot = Slot(base, slot_member(self._identity, jid))
        holds = unit.resources = unit.resources or JobResources()
        others = holds.on_hold() if holds.lock is not None or holds.slots else ""
        since = timestamp(payload.get(BUFFERED_AT))
        stamped = "" if since is None else f"{since:.6f}"
        mode = "park" if may_wait else "refuse"
        arguments = [unit.data, slot.member, jid, unit.queue, limit, SLOT_TTL_S, stamped, scope, share, mode, others]
        # Before it is asked for: whoever gives the job back meanwhile, or after a lost reply, lets go of it.
        if slot not in holds.slots:
            holds.slots.append(slot)
        reply: Any = TAKE_SLOT(self._client, [keys.working(self._identity), base], arguments)
        state, *counts = reply
        answer = SlotResult(_STATES[state], *counts)
        # What was reserved for it has become its own, or free.
        gone = {slot_member("", jid)} | ({slot.member} if answer.state != "taken" else set[str]())
        holds.slots = [one for one in holds.slots if one.base != base or one.member not in gone]
        return answer


def release_reservation(unit: UnitOfWork, payload: Payload, name: str) -> None:
    """From now on the unit holds the slot that may be reserved for its job: it is free when the job goes."""
    holds = unit.resources = unit.resources or JobResources()
    holds.slots += reservations(payload, unit.data, (name,))


def renew_slots(client: "redis.Redis", units: Iterable[UnitOfWork]) -> None:
    """Keep the slots that these jobs hold; costs nothing when they hold none. Raises redis errors."""
    # Read once each: the thread of the job may put another in its place, or none, meanwhile.
    held = [slot for unit in units if (holds := unit.resources) is not None for slot in tuple(holds.slots)]
    if held:
        RENEW_SLOTS(client, [f"{slot.base}:running" for slot in held], [SLOT_TTL_S, *(slot.member for slot in held)])
