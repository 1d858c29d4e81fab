"""Hold the jobs of paused classes, unchanged, until the pause ends."""

from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from framework.declare.declaration import Declaration
from framework.execute.admission import AdmissionRequest
from framework.features.flags.flag import pause_flag
from framework.features.pause.state import Pause, PauseState
from framework.finish.outcome import Held, Lost, NotAdmitted
from framework.store.script import HOLD_PAUSED, is_wrong_type
from framework.telemetry.logs import LogRateLimit
from framework.wire import keys
from framework.wire.sub_queues import return_queue

MARKER_TTL_MS = 60_000
"""How long a class counts as paused for processes that do not know it, after a process that knows it has said so."""

_LOG_INTERVAL_S = 60.0
_MAX_ATTEMPTS = 3


class PausePolicy:
    """Hold the jobs of paused classes."""

    def __init__(self, client: "redis.Redis", identity: str, state: PauseState) -> None:
        self._client = client
        self._working = keys.working(identity)
        self._state = state
        self._reply_lost: set[bytes] = set()
        self._log_limit = LogRateLimit(_LOG_INTERVAL_S)

    def applies_to(self, declaration: Declaration) -> bool:
        return self._state.may_pause(declaration)

    def admit(self, request: AdmissionRequest) -> NotAdmitted | None:
        """See ``AdmissionPolicy``. The script that holds a job checks the operator's flag again, so an ended pause holds no job."""
        declaration = request.declaration
        for _ in range(_MAX_ATTEMPTS):
            pause = self._state.pause_of(declaration.wire_name, declaration.facts["pause_control"])
            if pause is None:
                return None
            try:
                held = self._hold(request, pause)
            except (RedisConnectionError, RedisTimeoutError, OSError):
                self._reply_lost.add(request.unit.data)
                raise
            except ResponseError as error:
                if not is_wrong_type(error):
                    raise
                self._log_unusable(declaration, error)
                return None
            if held >= 0:
                return self._held(request, pause, held_here=bool(held))
            self._state.refresh()
        return None

    def _held(self, request: AdmissionRequest, pause: Pause, *, held_here: bool) -> Held | Lost:
        """Return that the job is held, or lost to another process. After a lost reply an earlier try has held the job."""
        data = request.unit.data
        held = held_here or data in self._reply_lost
        self._reply_lost.discard(data)
        fields = {"pause_control": pause.strategy, **({"pause_reason": pause.reason} if pause.reason else {})}
        return Held("paused", fields) if held else Lost(fields)

    def _hold(self, request: AdmissionRequest, pause: Pause) -> int:
        unit, worker = request.unit, request.declaration.wire_name
        held: Any = HOLD_PAUSED(
            self._client,
            [self._working, keys.paused_jobs(worker), keys.PAUSED_CLASSES, keys.FLAGS, keys.pause_strategy(worker)],
            [
                unit.data,
                return_queue(unit.queue, unit.data),
                worker,
                pause_flag(worker),
                pause.expected_flag,
                "" if pause.expected_flag else pause.strategy,
                MARKER_TTL_MS,
                unit.resources.on_hold() if unit.resources is not None else "",
            ],
        )
        return int(held)

    def _log_unusable(self, declaration: Declaration, error: ResponseError) -> None:
        self._log_limit.error(
            declaration.wire_name,
            f"a key of the pause of {declaration.wire_name} has the wrong type, so its jobs run. Check the key with TYPE, then "
            "delete it",
            "pause.unusable",
            error=error,
            **{"class": declaration.wire_name},
        )
