"""Build the one further run of a job whose duplicate came during its run (GitLab's ``if_deduplicated: :reschedule_once``)."""

from typing import Any

from framework.declare.policy_options import Deduplicate
from framework.fetch.unit_of_work import UnitOfWork
from framework.process_clock import process_clock
from framework.push.protection import NO_PROTECTION, PayloadProtection
from framework.recover.suspects import SUSPECT_FIELD
from framework.telemetry import logs
from framework.types import Jid
from framework.wire import keys
from framework.wire.job import (
    BATCH_EVENT,
    BID,
    DEATH_COUNT,
    DEFERRED,
    DEFERRED_BY,
    DEFERRED_COUNT,
    EXPIRY,
    INTERRUPTED_COUNT,
    TRANSFER,
    UNKNOWN_COUNT,
    UNKNOWN_SINCE,
    decode,
    expiry_of,
    generate_jid,
    rewrite,
    wire_timestamp,
)
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
    *(UNKNOWN_COUNT, UNKNOWN_SINCE, EXPIRY),
    # The further run is none of the jobs that its batch has counted.
    *(BID, BATCH_EVENT),
)
"""The payload fields that describe the finished run."""


def next_run(unit: UnitOfWork, policy: Deduplicate, protection: PayloadProtection = NO_PROTECTION) -> NextRun:
    """Return the next run: a new job with the arguments and the context of the job that ``unit`` holds.

    Raises OSError as ``PayloadProtection.bind_to``: the settlement is then tried again.
    """
    payload = decode(unit.data, None)
    former, jid, now = payload.get("jid"), generate_jid(), wire_timestamp(process_clock.now())
    signed = protection.is_signed(payload)
    for name in _RUN_FIELDS:
        payload.pop(name, None)
    protection.bind_to(payload, jid, sign=signed)
    payload.update({"queue": unit.queue, "created_at": now, "enqueued_at": now, RESCHEDULED_ONCE: True})
    found = tracked_job(payload)
    state = None if found is None else (keys.status(jid), "queued", found.ttl_s)

    def log() -> None:
        # The new job has the offloaded arguments of this one.
        unit.keep_blob()
        _log_rescheduled(str(payload["class"]), former, jid, unit.queue, policy)

    return NextRun(rewrite(unit.data, payload), unit.queue, jid, state, log, expiry_of(payload) or 0.0)


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
