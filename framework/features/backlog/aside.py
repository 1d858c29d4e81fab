"""Set jobs aside that cannot start while memory is short, and return them to their queues.

Where a limit or a pause holds a job, and where a deferred one waits, it takes up to half more memory than in its queue. So while
memory is short such a job goes to a list beside its queue, of its class: it takes as many bytes there, and the jobs of other classes
behind it get through. The process that measures the memory returns the oldest ones from time to time, the more the fewer come back.

At a crash: each job is in its queue, in the working list, or in the list beside the queue.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import redis

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest
from framework.features.backlog.pressure import MemoryPressure
from framework.features.backlog.store import READ_WAITING, RETURN_ASIDE, SET_ASIDE
from framework.finish.outcome import Held, HeldBy, Lost
from framework.process_clock import process_clock
from framework.store.absent_keys import AbsentKeys
from framework.telemetry.job_events import JobHeld, job_events
from framework.wire import keys
from framework.wire.job import BUFFERED_AT
from framework.wire.sub_queues import aside_list, parent_of

MOST_WAITING = 1_000
"""So many jobs may wait at a limit while memory is short: enough for the slots that become free until more of them return."""

_LEAST_ROOM = 100
_ROOM_PERIOD_S = 0.25
_TOGETHER = 200
"""The most jobs of the queue that one step sets aside with a fetched one."""

_FIRST, _MOST = 100, 1_000
"""The jobs that return in one step: at first, and at most."""
STEP_S = 0.25
_LONGEST_S = 5.0
_STEPS_TOGETHER = 8
"""The steps made at once while memory is not short: what returns then does not come back."""

_WAITED = f'"{BUFFERED_AT}"'


class _Room(NamedTuple):
    jobs: int
    """So many may still go to the limit before it is looked at again."""
    look_at: float


class AsidePolicy:
    """Set aside the jobs of classes that cannot start, while memory is short. Safe from any thread."""

    def __init__(
        self,
        client: "redis.Redis",
        owner: str,
        pressure: MemoryPressure,
        stops: Callable[[Declaration], bool],
    ) -> None:
        self._client = client
        self._working = keys.working(owner)
        self._pressure = pressure
        self._stops = stops
        self._rooms: dict[tuple[str, str], _Room] = {}
        self._lock = threading.Lock()

    def applies_to(self, declaration: Declaration) -> bool:
        del declaration
        return self._pressure.short

    def admit(self, request: AdmissionRequest) -> Held | Lost | None:
        """See ``AdmissionPolicy``."""
        if self._stops(request.declaration):
            return self._set_aside(request, "paused")
        # A job that has waited has a slot.
        if BUFFERED_AT in request.payload or self._has_room(request):
            return None
        return self._set_aside(request, "concurrency_limit")

    def _set_aside(self, request: AdmissionRequest, by: HeldBy) -> Held | Lost:
        unit, worker = request.unit, request.declaration.wire_name
        name = aside_list(unit.queue, worker)
        names = [self._working, keys.queue(unit.queue), keys.queue(name), keys.QUEUES, keys.ASIDE]
        words = [unit.data, name, f'"class":"{worker}"', _WAITED, _TOGETHER, unit.resources_on_requeue()]
        moved: Any = SET_ASIDE(self._client, names, words)
        if not moved:
            return Lost()
        job_events.emit(JobHeld(worker, moved, by=by))
        return Held(by)

    def _has_room(self, request: AdmissionRequest) -> bool:
        """Return whether the job may wait at its limit, if it has one. Reads Redis once for many jobs."""
        worker, queue = request.declaration.wire_name, request.unit.queue
        with self._lock:
            now, room = process_clock.monotonic(), self._rooms.get((worker, queue), _Room(0, 0.0))
            if room.jobs <= 0 and now >= room.look_at:
                left = MOST_WAITING - self._waiting(worker, queue)
                room = _Room(left if left >= _LEAST_ROOM else 0, now + _ROOM_PERIOD_S)
            # With room the next look is due as soon as it is used up.
            due = 0.0 if room.jobs > 0 else room.look_at
            self._rooms[worker, queue] = _Room(room.jobs - 1, due)
        return room.jobs > 0

    def _waiting(self, worker: str, queue: str) -> int:
        return int(cast("int", READ_WAITING(self._client, [keys.limit(worker), keys.limit(f"queue/{queue}")], [])))


class _Returned(NamedTuple):
    step: int
    """The jobs of the next step."""
    left: int
    """The jobs of the list after the last one."""
    due: float


class AsideReturn:
    """Return jobs that were set aside on one shard. One process does; ``step`` is called by one thread."""

    def __init__(self, client: "redis.Redis", absent: AbsentKeys) -> None:
        self._client = client
        self._absent = absent
        self._lists: dict[str, _Returned] = {}

    def step(self, *, short: bool) -> bool:
        """Return some jobs of each list; return whether there are lists. Raises redis errors."""
        if not self._absent.may_exist(keys.ASIDE):
            return False
        names = [name.decode(errors="replace") for name in cast("set[bytes]", self._client.smembers(keys.ASIDE))]
        self._absent.note(keys.ASIDE, found=bool(names))
        self._lists = {name: one for name, one in self._lists.items() if name in names}
        for name in sorted(names):
            self._return(name, short=short)
        return bool(names)

    def _return(self, name: str, *, short: bool) -> None:
        now, known = process_clock.monotonic(), self._lists.get(name, _Returned(_FIRST, 0, 0.0))
        if short and now < known.due:
            return
        queue = parent_of(name)
        list_keys = [keys.queue(name), keys.queue(queue), keys.QUEUES, keys.ASIDE]
        before = self._client.llen(list_keys[0])
        # Those of the last step are there again, or new ones: the class cannot start yet.
        came_back = name in self._lists and before >= known.left + (known.step + 1) // 2
        size = max(1, known.step // 4) if short and came_back else min(_MOST, known.step * 2)
        left = before
        for _ in range(1 if short else _STEPS_TOGETHER):
            moved, left = cast("Sequence[int]", RETURN_ASIDE(self._client, list_keys, [size, name, queue]))
            if moved < size:
                break
        pause_s = min(_LONGEST_S, STEP_S * _FIRST / size)
        self._lists[name] = _Returned(size, left, now + pause_s)
