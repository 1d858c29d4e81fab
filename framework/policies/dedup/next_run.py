"""The one more run of a job during whose run a duplicate came (GitLab's ``if_deduplicated: :reschedule_once``)."""

from collections.abc import Callable
from typing import Any

from framework.declare.policies import Deduplicate
from framework.fetch.blame import SUSPECT
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.types import Jid
from framework.wire import keys
from framework.wire.holds import DUPLICATE_OF, RESCHEDULED_ONCE, NextRun
from framework.wire.ids import draw_jid
from framework.wire.job import (
    DEATHS,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    STOPS,
    TRANSIT,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    decode,
    stamp,
)
from framework.wire.splice import rewrite
from framework.wire.status import tracked

_OF_THE_RUN = (
    *(
        "retry_count",
        "failed_at",
        "retried_at",
        "error_class",
        "error_message",
        "error_backtrace",
        "at",
        "scheduled_at",
    ),
    *(STOPS, DEATHS, SUSPECT, DEFERRED, DEFERRED_BY, DEFERRED_COUNT, TRANSIT, DUPLICATE_OF),
    *(UNKNOWN_COUNT, UNKNOWN_SINCE),
)
"""What a payload says of the run that is done."""


def next_run(unit: UnitOfWork, policy: Deduplicate, clock: Callable[[], float]) -> NextRun:
    """Return the job that is to run next: new, with the arguments and the context of the one that ``unit`` holds."""
    payload = decode(unit.data, None)
    former, jid, now = payload.get("jid"), draw_jid(), stamp(clock())
    for name in _OF_THE_RUN:
        payload.pop(name, None)
    payload.update({"jid": jid, "queue": unit.queue, "created_at": now, "enqueued_at": now, RESCHEDULED_ONCE: True})
    found = tracked(payload)
    state = None if found is None else (keys.status(jid), "queued", found.kept_s)

    def tell() -> None:
        _tell(str(payload["class"]), former, jid, unit.queue, policy)

    return NextRun(rewrite(unit.data, payload), unit.queue, jid, state, tell)


def _tell(worker: str, former: Any, jid: Jid, queue: str, policy: Deduplicate) -> None:
    kind = policy.strategy.replace("_", " ")
    logs.logger().info(
        f"{worker} JID-{former}: rescheduled: {kind}",
        **{
            "class": worker,
            "jid": former,
            "queue": queue,
            "job_status": "rescheduled",
            "rescheduled_as": jid,
            "deduplication.type": kind,
        },
    )
