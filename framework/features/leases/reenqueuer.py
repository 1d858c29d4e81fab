"""Define ``ReenqueuerWorker``: one job of a class at a time, which pushes the next while it has work (GitLab's Reenqueuer)."""

import asyncio
import inspect
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any, ClassVar, Never

from framework.application_worker import ApplicationWorker
from framework.declare import check, validators
from framework.declare.validators import ErrorCollector, InvalidValue, validate_value
from framework.errors import DeclarationError, RetryLater
from framework.features.leases.lease import LEASE_TIMEOUT, HeldLease, Lease, LeaseHolder
from framework.typeguards import qualified_name

_PERFORM = "perform"
_CHECK_S = 0.1
"""A job that waits for its minimum duration looks this often whether the process stops."""


class ReenqueuerWorker(ApplicationWorker, abstract=True):
    """Run one job of the class at a time, over all processes, and the next as long as ``perform`` returns a true value.

    The job holds a lease of ``lease_timeout``; a job that finds it held ends without running ``perform``. A run lasts at least
    ``minimum_duration``. A run that fails ends the chain: let cron push the class, every minute for example.
    """

    retry = False
    _aw_is_reenqueuer = True
    _aw_lease: ClassVar[Lease | None] = None
    _aw_held: HeldLease | None = None

    def __init_subclass__(cls, *, abstract: bool = False, **others: Never) -> None:
        if abstract:
            super().__init_subclass__(abstract=True, **others)
            return
        faults = ErrorCollector(qualified_name(cls))
        _check_reenqueuer(faults, cls)
        if faults.errors:
            check.read_attributes(faults, cls)
            faults.raise_errors()
        if _PERFORM in vars(cls):
            setattr(cls, _PERFORM, _build_perform(vars(cls)[_PERFORM]))
        super().__init_subclass__(**others)
        declaration = cls.declaration()
        cls._aw_lease = Lease(f"reenqueuer:{declaration.wire_name}", timeout=declaration.facts["lease_timeout"])

    @property
    def lease(self) -> HeldLease:
        """Return the lease of the running job: ``self.lease.renew()`` in a long loop.

        Raises:
            DeclarationError: no job runs, as in a test that calls ``perform`` of an instance.
        """
        if self._aw_held is None:
            raise DeclarationError(qualified_name(type(self)), "has no lease outside of a job.")
        return self._aw_held

    def _aw_end(self, held: HeldLease, *, again: object, args: tuple[Any, ...]) -> None:
        """End the lease, then push the next job.

        In this order, because the next job may start at once, and a job that finds the lease held ends the chain.
        """
        lost = not held.cancel()
        if again:
            type(self).perform_async(*args)
        self.log_extra(reenqueued=bool(again), **({"lease_lost": True} if lost else {}))

    def _aw_give_way(self, holder: LeaseHolder | None) -> None:
        """Let the job end, because another job has the lease; raise RetryLater if an earlier run of this job has it.

        That run was cut off, by the death of its process or at the deadline of a stop, and its work is left: without another run the
        chain would end with it.
        """
        self.log_extra(reenqueued=False, lease_taken=True)
        if holder is not None and self.jid in holder.holder.split():
            raise RetryLater(holder.left_s, "an earlier run of the job was cut off, and its lease has not ended")

    def _aw_rest_s(self, began: float) -> float:
        """Return the seconds until the minimum duration is over; 0 if the process stops."""
        run, minimum_s = self._aw_run, self.declaration().facts["minimum_duration"].total_seconds()
        return 0.0 if run is not None and run.interrupted else began + minimum_s - time.monotonic()


def _lease_of(worker: ReenqueuerWorker) -> Lease:
    lease = type(worker)._aw_lease  # pyright: ignore[reportPrivateUsage]
    assert lease is not None, "only classes with a lease run"  # noqa: S101
    return lease


def _build_perform(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``perform`` of a class, within its lease. Called by that of a subclass, it has the lease already."""
    return _build_async(work) if inspect.iscoroutinefunction(work) else _build_sync(work)


# pyright: reportPrivateUsage=false
def _build_async(work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    async def perform(self: ReenqueuerWorker, *args: Any) -> Any:
        if self._aw_held is not None:
            return await work(self, *args)
        held = await _lease_of(self).aobtain()
        if held is None:
            self._aw_give_way(await _lease_of(self).aholder())
            return None
        self._aw_held, began = held, time.monotonic()
        try:
            again = await work(self, *args)
            # No event says that the process stops.
            while (left_s := self._aw_rest_s(began)) > 0:  # noqa: ASYNC110
                await asyncio.sleep(min(left_s, _CHECK_S))
        except BaseException:
            await asyncio.shield(held.acancel())
            raise
        finally:
            self._aw_held = None
        await asyncio.to_thread(self._aw_end, held, again=again, args=args)
        return None

    return perform


def _build_sync(work: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(work)
    def perform(self: ReenqueuerWorker, *args: Any) -> Any:
        if self._aw_held is not None:
            return work(self, *args)
        held = _lease_of(self).obtain()
        if held is None:
            self._aw_give_way(_lease_of(self).holder())
            return None
        self._aw_held, began = held, time.monotonic()
        try:
            again = work(self, *args)
            while (left_s := self._aw_rest_s(began)) > 0:
                time.sleep(min(left_s, _CHECK_S))
        except BaseException:
            held.cancel()
            raise
        finally:
            self._aw_held = None
        self._aw_end(held, again=again, args=args)
        return None

    return perform


def _check_reenqueuer(faults: ErrorCollector, cls: type[ReenqueuerWorker]) -> None:
    if cls.lease_timeout is None:
        faults.add("lease_timeout is missing: the most time that one run may take.", "lease_timeout")
    else:
        with faults.collect():
            timeout: timedelta = validate_value(faults.worker, "lease_timeout", cls.lease_timeout, LEASE_TIMEOUT)
            _check_minimum(faults, timeout, cls.minimum_duration)
    if cls.retry not in (False, 0):
        message = (
            f"retry = {cls.retry!r} is not allowed: the next job, or cron, replaces a retry. Leave it at False, or 0."
        )
        faults.add(message, "retry")


def _check_minimum(faults: ErrorCollector, timeout: timedelta, minimum: Any) -> None:
    # A minimum that is not allowed is reported with the other attributes.
    with suppress(InvalidValue):
        least: timedelta = validators.duration(minimum)
        if least >= timeout:
            message = (
                f"lease_timeout = {timeout} is not longer than minimum_duration = {least}: the lease would end while the job waits. "
                "Make lease_timeout longer, or minimum_duration shorter."
            )
            faults.add(message, "lease_timeout")
