"""The door of paused classes: their jobs are parked, whole, until the pause ends."""

import time
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.declare.declaration import Declaration
from framework.execute.gates import Entry
from framework.finish.outcome import Outcome, Parked
from framework.flags.flag import pause_flag
from framework.policies.pause.pauses import Pause, Pauses
from framework.store.script import PARK, is_wrong_type
from framework.telemetry import logs
from framework.telemetry.repeated import Repeated
from framework.wire import keys

KEPT_MS = 60_000
"""How long a class counts as paused, for processes that do not know it, after one that does has said so."""

_QUIET_S = 60.0
_MOST_CHANGES = 3


class PauseGate:
    """Parks jobs of paused classes."""

    def __init__(self, client: "redis.Redis", identity: str, pauses: Pauses) -> None:
        self._client = client
        self._working = keys.working(identity)
        self._pauses = pauses
        self._in_doubt: set[bytes] = set()
        self._told = Repeated(_QUIET_S)

    def concerns(self, declaration: Declaration) -> bool:
        """See ``Gate``."""
        return self._pauses.may_concern(declaration)

    def admit(self, entry: Entry) -> Outcome | None:
        """See ``Gate``. That an operator's pause goes on is asked in the step that parks: one that has just ended parks nothing."""
        declaration = entry.declaration
        for _ in range(_MOST_CHANGES):
            pause = self._pauses.of(declaration.wire_name, declaration.pause_control)
            if pause is None:
                return None
            try:
                parked = self._park(entry, pause)
            except (RedisConnectionError, RedisTimeoutError, OSError):
                self._in_doubt.add(entry.unit.data)
                raise
            except ResponseError as error:
                if not is_wrong_type(error):
                    raise
                self._tell(declaration, error)
                return None
            if parked >= 0:
                return self._left(entry, pause, ours=bool(parked))
            self._pauses.read()
        return None

    def _left(self, entry: Entry, pause: Pause, *, ours: bool) -> Parked:
        """The job is parked; or somebody else has it, unless an earlier try of ours has parked it, whose reply was lost."""
        data = entry.unit.data
        status = "paused" if ours or data in self._in_doubt else "fenced"
        self._in_doubt.discard(data)
        return Parked(
            status, {"pause_control": pause.strategy, **({"pause_reason": pause.reason} if pause.reason else {})}
        )

    def _park(self, entry: Entry, pause: Pause) -> int:
        unit, worker = entry.unit, entry.declaration.wire_name
        parked: Any = PARK(
            self._client,
            [self._working, keys.paused_jobs(worker), keys.PAUSES, keys.FLAGS, keys.pause_kept(worker)],
            [
                unit.data,
                unit.queue,
                worker,
                pause_flag(worker),
                pause.expected,
                "" if pause.expected else pause.strategy,
                KEPT_MS,
                unit.holds.parks() if unit.holds is not None else "",
            ],
        )
        return int(parked)

    def _tell(self, declaration: Declaration, error: ResponseError) -> None:
        if count := self._told.due(declaration.wire_name, time.monotonic()):
            logs.logger(**{"class": declaration.wire_name}).error(
                "the keys of this pause cannot be used, so its jobs run",
                event_name="pause.unusable",
                count=count,
                error=error,
            )
