"""The objects of ``framework.lease``: a lease, and a lease that is held. Sends nothing before its first use."""

import asyncio
import random
import re
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from framework.async_twin import async_twin
from framework.declare import port, validators
from framework.declare.validators import InvalidValue, Validator, validate_value
from framework.errors import LeaseLostError, LeaseTakenError
from framework.feature import Late

if TYPE_CHECKING:
    from framework.features.leases.store import Leases

# Late: a module of workers makes leases, and needs no Redis for that.
_LEASES: "Late[type[Leases]]" = Late("framework.features.leases.store:Leases")

# Not with a dash in front: a command would read it as an option.
_NAME = re.compile(r"[A-Za-z0-9_:./][A-Za-z0-9_:./-]{0,199}")

# A holder may end its lease at any time: a waiting caller looks again, more rarely each time.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.02, 0.5


class LeaseHolder(NamedTuple):
    """The holder of a lease, and the seconds until the lease ends by itself."""

    holder: str
    left_s: float


class Lease:
    """An exclusive lease on a name: at most one holder at a time, over all processes (GitLab's ``ExclusiveLease``).

    Make it once, at the top of a module. It ends by itself after ``timeout``, unless its holder renews it.
    """

    def __init__(self, name: str, *, timeout: timedelta | float, shard: str | None = None) -> None:
        """Raises DeclarationError: a value is not allowed."""
        self.name: str = validate_value("framework.lease", "name", name, _NAMED)
        span: timedelta = validate_value(self._title, "timeout", timeout, LEASE_TIMEOUT)
        self.timeout_s = span.total_seconds()
        self.shard: str | None = validate_value(self._title, "shard", shard, validators.optional(validators.shard))

    @property
    def _title(self) -> str:
        return f"lease {self.name!r}"

    def obtain(self) -> "HeldLease | None":
        """Obtain the lease; return ``None`` at once if another holder has it (GitLab's ``try_obtain``).

        Raises:
            ShardUnavailableError: the shard does not answer or refuses.
        """
        held = HeldLease(self)
        return held if held.obtain() is None else None

    async def aobtain(self) -> "HeldLease | None":
        """Obtain the lease as ``obtain``, without blocking the event loop. A cancelled call obtains none."""
        held = HeldLease(self)
        return held if await held.aobtain() is None else None

    def holder(self) -> LeaseHolder | None:
        """Return the holder of the lease, and the seconds until it ends; ``None`` if it is free.

        Raises:
            ShardUnavailableError: as ``obtain``.
        """
        return port.current().service(_LEASES).holder(self.shard, self.name)

    aholder = async_twin(holder)

    @contextmanager
    def hold(self, *, wait: timedelta | float = 0) -> "Generator[HeldLease]":
        """Hold the lease for the block (GitLab's ``in_lock``). Wait for the end of another holder, at most for ``wait``.

        Raises:
            LeaseTakenError: another holder has the lease.
            LeaseLostError: at the end of a block without an error, the lease had ended before: another block may have run.
            ShardUnavailableError: as ``obtain``.
        """
        held, until = HeldLease(self), self._deadline(wait)
        pause_s = _FIRST_PAUSE_S
        while (other := held.obtain()) is not None:
            time.sleep(self._next_pause_s(other, until, pause_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        try:
            yield held
        except BaseException:
            held.cancel()
            raise
        held.end()

    @asynccontextmanager
    async def ahold(self, *, wait: timedelta | float = 0) -> "AsyncGenerator[HeldLease]":
        """Hold the lease as ``hold``, for ``async with``: the event loop goes on."""
        held, until = HeldLease(self), self._deadline(wait)
        pause_s = _FIRST_PAUSE_S
        while (other := await held.aobtain()) is not None:
            await asyncio.sleep(self._next_pause_s(other, until, pause_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        try:
            yield held
        except BaseException:
            # The end is sent although the task is cancelled.
            await asyncio.shield(held.acancel())
            raise
        await asyncio.shield(held.aend())

    def _deadline(self, wait: timedelta | float) -> float:
        seconds: float = validate_value(self._title, "wait", wait, validators.wait)
        return time.monotonic() + seconds

    def _next_pause_s(self, other: LeaseHolder, until: float, pause_s: float) -> float:
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise LeaseTakenError(self.name, other.holder, other.left_s)
        return min(pause_s * random.uniform(0.5, 1), left_s)


class HeldLease:
    """One holder's lease. Its token makes sure that it renews and ends no lease of another holder."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._token = secrets.token_hex(12)
        self._ends_at = 0.0
        self._lock = threading.Lock()
        self._abandoned = False

    @property
    def name(self) -> str:
        return self._lease.name

    @property
    def left_s(self) -> float:
        """The seconds until the lease ends, by the clock of this process; 0 after its end. Sends nothing."""
        return max(0.0, self._ends_at - time.monotonic())

    def obtain(self) -> LeaseHolder | None:
        """Obtain the lease, again if it is lost; return its holder if another has it, else ``None``."""
        began, lease = time.monotonic(), self._lease
        other = port.current().service(_LEASES).obtain(lease.shard, lease.name, self._token, lease.timeout_s)
        if other is None:
            # Counted from before the call: Redis ends the lease later than that.
            with self._lock:
                self._ends_at = began + lease.timeout_s
                is_wanted = not self._abandoned
            if not is_wanted:
                self.cancel()
        return other

    async def aobtain(self) -> LeaseHolder | None:
        """Obtain the lease as ``obtain``, without blocking the event loop. A cancelled call leaves the lease free."""
        try:
            return await asyncio.to_thread(self.obtain)
        except asyncio.CancelledError:
            # The thread goes on: it may have obtained the lease before this line, or obtains it later, and then ends it.
            with self._lock:
                self._abandoned = True
                is_held = self.left_s > 0
            if is_held:
                await asyncio.shield(self.acancel())
            raise

    def renew(self) -> None:
        """Let the lease last for its whole ``timeout`` from now on. Call it in a long loop.

        Raises:
            LeaseLostError: the lease has ended, and another holder may have it. Stop the work.
            ShardUnavailableError: the shard does not answer or refuses. The lease may still be held: see ``left_s``.
        """
        began, lease = time.monotonic(), self._lease
        if not port.current().service(_LEASES).renew(lease.shard, lease.name, self._token, lease.timeout_s):
            self._ends_at = 0.0
            raise LeaseLostError(lease.name, lease.timeout_s)
        self._ends_at = began + lease.timeout_s

    arenew = async_twin(renew)

    def cancel(self) -> bool:
        """End the lease now; return false if it had ended before. A shard that does not answer is ignored: the lease ends."""
        self._ends_at = 0.0
        return port.current().service(_LEASES).renew(self._lease.shard, self._lease.name, self._token, 0.0)

    acancel = async_twin(cancel)

    def end(self) -> None:
        """End the lease after its work.

        Raises:
            LeaseLostError: it had ended before: another holder may have worked at the same time.
        """
        if not self.cancel():
            raise LeaseLostError(self._lease.name, self._lease.timeout_s)

    aend = async_twin(end)


def _check_name(value: Any) -> str:
    # Also a jid that a push on an event loop has returned.
    if isinstance(value, str) and _NAME.fullmatch(value):
        return str(value)
    raise InvalidValue(_NAMED.allowed)


def _check_timeout(value: Any) -> timedelta:
    try:
        span: timedelta = validators.duration(value)
    except InvalidValue:
        raise InvalidValue(LEASE_TIMEOUT.allowed) from None
    if timedelta(milliseconds=100) <= span <= timedelta(days=30):
        return span
    raise InvalidValue(LEASE_TIMEOUT.allowed)


_NAMED = Validator("a name of at most 200 letters, digits and _ : . / -, without a - in front", _check_name)
LEASE_TIMEOUT = Validator("a timedelta or a number of seconds, from 0.1 s to 30 days", _check_timeout)
