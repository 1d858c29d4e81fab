"""The one more run of a job during whose run a duplicate came (GitLab's ``if_deduplicated: :reschedule_once``)."""

from collections.abc import Callable
from typing import Any

from framework.declare.policy_options import Deduplicate
from framework.fetch.suspects import SUSPECT_FIELD
from framework.fetch.unit_of_work import UnitOfWork
from framework.telemetry import logs
from framework.types import Jid
from framework.wire import keys
from framework.wire.ids import generate_jid
from framework.wire.job import (
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    INTERRUPTED_COUNT,
    TRANSFER,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    decode,
    wire_timestamp,
)
from framework.wire.payload_edit import rewrite
from framework.wire.resources import DUPLICATE_OF, RESCHEDULED_ONCE, NextRun
from framework.wire.status_key import tracked_job

_RUN_FIELDS = (
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
    *(INTERRUPTED_COUNT, DEATH_COUNT, SUSPECT_FIELD, DEFERRED, DEFERRED_BY, DEFERRED_COUNT, TRANSFER, DUPLICATE_OF),
    *(UNKNOWN_COUNT, UNKNOWN_SINCE),
)
"""What a payload says of the run that is done."""


def next_run(unit: UnitOfWork, policy: Deduplicate, clock: Callable[[], float]) -> NextRun:
    """Return the job that is to run next: new, with the arguments and the context of the one that ``unit`` holds."""
    payload = decode(unit.data, None)
    former, jid, now = payload.get("jid"), generate_jid(), wire_timestamp(clock())
    for name in _RUN_FIELDS:
        payload.pop(name, None)
    payload.update({"jid": jid, "queue": unit.queue, "created_at": now, "enqueued_at": now, RESCHEDULED_ONCE: True})
    found = tracked_job(payload)
    state = None if found is None else (keys.status(jid), "queued", found.ttl_s)

    def tell() -> None:
        _log_rescheduled(str(payload["class"]), former, jid, unit.queue, policy)

    return NextRun(rewrite(unit.data, payload), unit.queue, jid, state, tell)


def _log_rescheduled(worker: str, previous_jid: Any, jid: Jid, queue: str, policy: Deduplicate) -> None:
    kind = policy.strategy.replace("_", " ")
    logs.logger().info(
        f"{worker} JID-{previous_jid}: rescheduled: {kind}",
        **{
            "class": worker,
            "jid": previous_jid,
            "queue": queue,
            "job_status": "rescheduled",
            "rescheduled_as": jid,
            "deduplication.type": kind,
        },
    )
