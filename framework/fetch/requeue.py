"""Return jobs of this process to their queues: units that it knows, and jobs of its working list whose reply was lost."""

import time
from dataclasses import replace
from typing import Any, cast

import redis

from framework.errors import PayloadError
from framework.fetch.state import FetchState, ReplySnapshot
from framework.fetch.unit_of_work import UnitOfWork
from framework.recover.reaper import OnRecovered, RecoveredJob, read_queue, slots_in_list
from framework.recover.suspects import quarantine_counter
from framework.store.absent_keys import AbsentKeys
from framework.store.script import KILL, REQUEUE
from framework.types import Payload
from framework.wire import keys
from framework.wire.footprint import DECODED_LIMIT
from framework.wire.job import BUFFERED_AT, Job
from framework.wire.json import loads_object
from framework.wire.keys import SetLimits, split_owner
from framework.wire.malformed import batch_resources_of, dead_set_entry
from framework.wire.resources import JobResources
from framework.wire.sub_queues import return_queue


def requeue(client: "redis.Redis", identity: str, jobs: list[tuple[UnitOfWork, bytes]]) -> int:
    """Return jobs to the head of their queues, oldest first, each with the bytes to store; return how many this process owned.

    Raises redis errors.
    """
    return _requeue(client, identity, jobs, stays_without_lock=False)[0] if jobs else 0


def requeue_unstarted(
    client: "redis.Redis", identity: str, units: list[UnitOfWork], *, keep_locks: bool
) -> list[UnitOfWork]:
    """Return units that have not started to the head of their queues, oldest first; with ``keep_locks``, only with their locks.

    A unit whose lock another job has taken meanwhile then stays in the working list, and is in the result. Raises redis errors.
    """
    if not units:
        return []
    _, *staying = _requeue(client, identity, [(unit, unit.data) for unit in units], stays_without_lock=keep_locks)
    return [units[-position] for position in reversed(staying)]


def _requeue(
    client: "redis.Redis", identity: str, jobs: list[tuple[UnitOfWork, bytes]], *, stays_without_lock: bool
) -> list[int]:
    youngest_first = list(reversed(jobs))
    resources = [unit.resources_on_requeue(stays_without_lock=stays_without_lock) for unit, _ in youngest_first]
    places = [return_queue(unit.queue, unit.data) for unit, _ in youngest_first]
    returned: list[int] = REQUEUE(
        client,
        [keys.working(identity), keys.QUEUES, *map(keys.queue, places)],
        [
            len(jobs),
            *(unit.data for unit, _ in youngest_first),
            *(data for _, data in youngest_first),
            *places,
            *(resources if any(resources) else ()),
        ],
    )
    return returned


class Reconciler:
    """Compare the working list of this process with its memory, and return the jobs of lost replies.

    One comparison proves nothing: the reply may be under way, or unread while the process is stopped. A job counts as lost only if
    it is not in memory at a second comparison either, after the replies that were under way at the first have been read. After a
    failure of Redis, when no connection is open on which a reply could arrive, one comparison is enough (``reconcile_idle``). A
    payload that cannot be read, or has no queue name, moves to the dead set (``wire/malformed.py``).
    """

    def __init__(
        self,
        client: "redis.Redis",
        owner: str,
        state: FetchState,
        on_recovered: OnRecovered,
        dead_set_limits: SetLimits,
        decoded_limit: int = DECODED_LIMIT,
        absent: AbsentKeys | None = None,
    ) -> None:
        self._absent = absent or AbsentKeys()
        self._client = client
        self._owner = owner
        self._state = state
        self._in_flight = state.in_flight
        self._on_recovered = on_recovered
        self._dead_set_limits = dead_set_limits
        self._decoded_limit = decoded_limit
        self._candidates: set[bytes] = set()
        self._snapshot = ReplySnapshot(0, 0)

    def reconcile(self) -> int:
        """Compare once; return how many jobs went back to their queues. Raises redis errors.

        Sends nothing while the check for rare keys (``AbsentKeys``) says that the working list does not exist.
        """
        if not self._candidates and not self._absent.may_exist(keys.working(self._owner)):
            return 0
        in_flight = self._in_flight
        # First of all: then a candidate whose reply has been read is in memory below.
        all_read = self._state.all_read_since(self._snapshot)
        returned = set[bytes]()
        # Returned jobs had been read; if the same bytes are fetched again, they are new candidates.
        self._candidates -= in_flight.swap_returned(returned)
        unknown = self._not_in_memory()
        if self._candidates and not all_read:
            self._candidates.intersection_update(unknown)
            return 0
        lost = [data for data in unknown if data in self._candidates and data not in returned]
        self._candidates = set(unknown)
        if unknown:
            self._snapshot = self._state.snapshot_replies()
        else:
            in_flight.swap_returned(None)
        return self._requeue(lost)

    def reconcile_idle(self) -> int:
        """Compare while no call is under way; return how many jobs went back to their queues. Raises redis errors.

        Safe while another thread calls ``reconcile``: only the first of two moves finds the job in the list.
        """
        return self._requeue(self._not_in_memory())

    def _not_in_memory(self) -> list[bytes]:
        """Return the payloads that are in the list and not in memory, oldest first."""
        # Before the list is read: a job fetched in between is at worst a candidate.
        known = self._in_flight.payloads()
        listed = cast("list[bytes]", self._client.lrange(keys.working(self._owner), 0, -1))
        self._absent.note(keys.working(self._owner), found=bool(listed))
        return [data for data in reversed(listed) if data not in known]

    def _requeue(self, lost: list[bytes]) -> int:
        self._in_flight.note_returned(lost)
        # The youngest first: each goes to the head of its queue, which keeps the order.
        return sum(self._requeue_one(data) for data in reversed(lost))

    def _requeue_one(self, data: bytes) -> int:
        try:
            payload, queue = read_queue(data, self._decoded_limit)
        except PayloadError as error:
            payload, destination = Payload(), keys.DEAD
            stored = dead_set_entry(data, error, time.time())
            counter = quarantine_counter(loads_object(data).get("class"), "malformed")
            held = replace(batch_resources_of(data) or JobResources(), counter=counter)
            killed: Any = KILL(
                self._client,
                [keys.working(self._owner), keys.DEAD],
                [*self._dead_set_limits.arguments, 0, data, stored, "", held.on_end()],
            )
            # The first pair says how many were trimmed; one of the job itself, that another process owns it.
            moved, trimmed = int(killed[2:] != [1, 0]), int(killed[1])
        else:
            destination, trimmed = keys.queue(queue), 0
            # A job that has waited at a limit may have come with its slot.
            slots = slots_in_list(self._owner, payload, data) if BUFFERED_AT in payload else []
            unit = UnitOfWork(queue, data, resources=JobResources(None, slots) if slots else None)
            moved = requeue(self._client, self._owner, [(unit, data)])
        if moved:
            identity, _ = split_owner(self._owner)
            self._on_recovered(RecoveredJob(identity, Job(payload), destination, "lost reply", trimmed))
        return moved
