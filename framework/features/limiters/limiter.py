"""The objects of ``framework.limiter``: limiters, and the blocks that they admit. Sends nothing before its first use."""

import asyncio
import inspect
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar, cast

from framework.async_twin import async_twin
from framework.declare import port, validators
from framework.declare.validators import InvalidValue
from framework.errors import NestedLimiterError, OverLimit
from framework.feature import Late
from framework.typeguards import short_repr
from framework.types import Payload
from framework.wire.job import OVER_LIMIT_BY
from framework.wire.json import dumps
from framework.wire.protected import digest_of_key, is_encrypted

if TYPE_CHECKING:
    from framework.features.limiters.store import LimiterStore

P = ParamSpec("P")
R = TypeVar("R")

# Late: a module of workers makes limiters, and needs no Redis for that.
_LIMITERS: "Late[type[LimiterStore]]" = Late("framework.features.limiters.store:LimiterStore")

# A holder may release its lock at any time: a waiting caller looks again, more rarely each time.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.005, 0.1
_MAX_KEY = 200

LimiterKey: TypeAlias = str | int | None
KeyOfJob: TypeAlias = str | Callable[[Sequence[Any]], LimiterKey]


LimiterKind: TypeAlias = Literal["concurrent", "bucket", "window", "leaky", "points", "unlimited"]

OverLimitPolicy: TypeAlias = Literal["reschedule", "raise", "skip"]
"""The next step of a job that ``OverLimit`` ends: it runs again later, it fails, or it is dropped."""

WithoutShard: TypeAlias = Literal["raise", "proceed"]
"""What a block does while the shard of its limiter does not answer: it raises ShardUnavailableError, or it runs uncounted."""


@dataclass(frozen=True)
class LimiterRule:
    """The facts of one limiter. Spans are seconds; ``interval_s``, ``refill`` and ``lock_s`` belong to some kinds only."""

    name: str
    kind: LimiterKind
    limit: float
    interval_s: float | None = None
    refill: float | None = None
    """Points per second."""
    lock_s: float | None = None
    """After that many seconds the lock of a concurrent limiter ends by itself."""
    wait_s: float = 0.0
    """For how long a caller waits at most."""
    policy: OverLimitPolicy = "reschedule"
    reschedules: int = 20
    backoff: Callable[[int], timedelta | float] | None = None
    shard: str | None = None
    """``None``: the shard of the whole fleet."""
    without_shard: WithoutShard = "raise"

    @cached_property
    def wire(self) -> bytes:
        facts = {
            "kind": self.kind,
            "limit": self.limit,
            "interval_s": self.interval_s,
            "refill": self.refill,
            "lock_s": self.lock_s,
        }
        return dumps({name: value for name, value in facts.items() if value is not None})

    def over_limit(self, key: str, take: "Take", amount: float) -> OverLimit:
        return OverLimit(
            self.name,
            key,
            take.limit,
            take.retry_after_s,
            policy=self.policy,
            reschedules=self.reschedules,
            backoff=self.backoff,
            amount=amount,
            turn_s=take.turn_s,
        )


class Take(NamedTuple):
    """The result of one call of a limiter."""

    admitted: bool
    retry_after_s: float | None
    """Until a call may be admitted; ``None`` if that is not known, or never."""
    used: float
    limit: float
    """The limit in force: operators may have resized it."""
    turn_s: float | None = None
    """Until a job that is not admitted is to come back: the calls that others were promised come first. ``None`` for other callers,
    and for a concurrent limiter."""


class _Held(NamedTuple):
    name: str
    key: str
    owner: object
    """The task or the thread of a block; ``None`` for a job, whose tasks and threads are all inside."""


_held: ContextVar[tuple[_Held, ...]] = ContextVar("held_limiters", default=())


def check_not_held(name: str, key: str) -> None:
    """Raise NestedLimiterError if the calling code is inside of a block, or of a job, that holds the limiter for this key."""
    held = _held.get()
    if held and any(one[:2] == (name, key) and one.owner in (None, _owner()) for one in held):
        raise NestedLimiterError(name, key)


def note_held(name: str, key: str, *, whole_job: bool = False) -> None:
    _held.set((*_held.get(), _Held(name, key, None if whole_job else _owner())))


def note_released(name: str, key: str) -> None:
    """Note that the block has ended. In another context than its begin this finds nothing, and changes nothing."""
    held = _held.get()
    found = next((one for one in reversed(held) if one[:2] == (name, key) and one.owner == _owner()), None)
    if found is not None:
        _held.set(tuple(one for one in held if one is not found))


def _owner() -> object:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else id(task)


def _limiters() -> "LimiterStore":
    return port.current().service(_LIMITERS)


class Permit:
    """One admitted call."""

    def __init__(self, limiter: "Limiter", key: str, token: str, amount: float) -> None:
        self._rule, self._key, self._token, self._amount = limiter.rule, key, token, amount

    def release(self) -> None:
        """End the call: a concurrent limiter has its lock back. May be called twice."""
        if self._rule.kind == "concurrent":
            note_released(self._rule.name, self._key)
            _limiters().give_back(self._rule, self._key, self._token)


class PointsPermit(Permit):
    """One admitted call of a points limiter."""

    def points_used(self, points: float) -> None:
        """Replace the estimate by the points that the call has really used. The last value counts; it may exceed the limit."""
        points = _amount("points", points, self._rule, minimum=0.0)
        if points != self._amount:
            token = f"{self._token} {secrets.token_hex(4)}"
            _limiters().correct(self._rule, self._key, points - self._amount, token)
            self._amount = points

    apoints_used = async_twin(points_used)


T = TypeVar("T", bound=Permit)


class _Attempts:
    """The tries of one call, until it is admitted or has waited for long enough."""

    def __init__(self, limiter: "Limiter", key: str, amount: float, wait_s: float, *, waited: bool = False) -> None:
        self._rule, self._key, self._amount = limiter.rule, key, amount
        self.token = secrets.token_hex(8)
        self._until = time.monotonic() + wait_s
        self._waited = waited
        self._pause_s = _FIRST_PAUSE_S
        self._lock = threading.Lock()
        self._abandoned = self._admitted = False
        if self._rule.kind == "concurrent":
            check_not_held(self._rule.name, key)

    def try_once(self) -> float | None:
        """Try; return how many seconds to wait before the next try, ``None`` if the call is admitted.

        Raises:
            OverLimit: the call is not admitted, and will not be within the time to wait.
        """
        left_s = max(0.0, self._until - time.monotonic())
        take = _limiters().take(self._rule, self._key, self._amount, self.token, waited=self._waited, left_s=left_s)
        if take.admitted:
            with self._lock:
                self._admitted = True
                is_wanted = not self._abandoned
            if not is_wanted:
                self._give_back()
            return None
        pause_s = self._next_pause_s(take)
        if pause_s is None or left_s <= 0 or (self._rule.kind != "concurrent" and pause_s > left_s):
            raise self._rule.over_limit(self._key, take, self._amount)
        self._waited = True
        return min(pause_s, left_s)

    def abandon(self) -> bool:
        """Let a try that runs in another thread give back what it takes; return whether one has been admitted before."""
        with self._lock:
            self._abandoned = True
            return self._admitted

    def _give_back(self) -> None:
        if self._rule.kind == "concurrent":
            _limiters().give_back(self._rule, self._key, self.token)

    def _next_pause_s(self, take: Take) -> float | None:
        if take.retry_after_s is None or self._rule.kind != "concurrent":
            return take.retry_after_s
        pause_s = self._pause_s * random.uniform(0.5, 1)
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        return min(pause_s, take.retry_after_s)


class Within(Generic[T]):
    """A block, or with ``@`` a function, that runs within the limit.

    An ``async def`` function waits without blocking the event loop.
    """

    def __init__(self, limiter: "Limiter", make: type[T], key: LimiterKey, amount: float) -> None:
        self._limiter, self._make, self._key, self._amount = limiter, make, _checked_key(key), amount
        self._permit: T | None = None

    def __enter__(self) -> T:
        attempts = _Attempts(self._limiter, self._key, self._amount, self._limiter.rule.wait_s)
        if self._limiter.rule.kind != "unlimited":
            while (pause_s := attempts.try_once()) is not None:
                time.sleep(pause_s)
        return self._admit(attempts)

    def _admit(self, attempts: _Attempts) -> T:
        self._permit = permit = self._make(self._limiter, self._key, attempts.token, self._amount)
        if self._limiter.rule.kind == "concurrent":
            note_held(self._limiter.name, self._key)
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:
            permit.release()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return the function within the limit. With the policy ``skip`` a call over the limit is left out and returns None.

        Raises:
            TypeError: it is a generator function, whose call ends before its body begins.
        """
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"limiter {self._limiter.name!r}: within() around the generator function {function.__qualname__} would end before "
                "its body begins. Write the block inside of the function, with `with` or `async with`"
            )
        if inspect.iscoroutinefunction(function):
            return cast("Callable[P, R]", self._around_async(function))

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            block = self._again()
            try:
                block.__enter__()
            except OverLimit as error:
                if error.policy == "skip":
                    return cast("R", None)
                raise
            try:
                return function(*args, **kwargs)
            finally:
                block.__exit__(None, None, None)

        return call

    def _around_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            block = AsyncWithin(self._again())
            try:
                await block.__aenter__()
            except OverLimit as error:
                if error.policy == "skip":
                    return None
                raise
            try:
                return await function(*args, **kwargs)
            finally:
                await block.__aexit__(None, None, None)

        return call

    def _again(self) -> "Within[T]":
        return Within(self._limiter, self._make, self._key or None, self._amount)

    async def _aenter(self) -> T:
        attempts = _Attempts(self._limiter, self._key, self._amount, self._limiter.rule.wait_s)
        try:
            if self._limiter.rule.kind != "unlimited":
                # No event: only the clock of Redis says when a call is admitted.
                while (pause_s := await asyncio.to_thread(attempts.try_once)) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            # The thread goes on: it may have been admitted before this line, or is admitted later.
            if attempts.abandon():
                permit = self._make(self._limiter, self._key, attempts.token, self._amount)
                await asyncio.shield(asyncio.to_thread(permit.release))
            raise
        return self._admit(attempts)


class AsyncWithin(Generic[T]):
    def __init__(self, block: Within[T]) -> None:
        self._block = block

    async def __aenter__(self) -> T:
        return await self._block._aenter()  # pyright: ignore[reportPrivateUsage]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The context of the task, not of the thread, has the note.
        if self._block._limiter.rule.kind == "concurrent":  # pyright: ignore[reportPrivateUsage]
            note_released(self._block._limiter.name, self._block._key)  # pyright: ignore[reportPrivateUsage]
        # In a thread of its own, so that the lock is released even if the task is cancelled.
        await asyncio.shield(asyncio.to_thread(self._block.__exit__, kind, error, trace))


@dataclass(frozen=True)
class Limiter:
    """A limit that all processes share. Make it with the functions of ``framework.limiter``, once, at the top of a module."""

    rule: LimiterRule
    key_of_job: KeyOfJob | None = None

    @property
    def name(self) -> str:
        return self.rule.name

    def by(self, key: KeyOfJob) -> Self:
        """Return the limiter for the attribute ``limiter`` of a class, with a limit for each key of a job.

        ``key`` is the name of a fact in the job's context (``"user"`` is ``meta.user``), or a function of the job's arguments that
        returns a text or a number. A job without a key is not limited. The key is a name in Redis, in log lines and in commands; of
        a class with ``encrypt``, a digest stands for a key that a function has made.
        """
        if not callable(key) and not str(key).isidentifier():
            raise _invalid(
                "key", key, "the name of a fact of the context, or a function of the job's arguments", self.name
            )
        return type(self)(self.rule, key)

    def used(self, key: LimiterKey = None) -> float:
        """Return how much is used now: held locks, calls of the interval, or points.

        Raises:
            ShardUnavailableError: the shard does not answer or refuses.
        """
        return _limiters().used(self.rule, _checked_key(key))

    aused = async_twin(used)

    def resize(self, limit: float | None, expires_in: timedelta | float | None = None) -> None:
        """Set another limit for all processes and all keys; ``None`` lets that of the code hold again.

        It ends after ``expires_in``, a timedelta or seconds, and when the limiter is not used for 90 days.

        Raises:
            ValueError: a value is not allowed.
            ShardUnavailableError: as ``used``.
        """
        if limit is not None:
            limit = _amount("limit", limit, self.rule, minimum=0)
        duration_s = None
        if expires_in is not None:
            try:
                duration_s = validators.duration(expires_in).total_seconds()
            except InvalidValue as error:
                raise _invalid("expires_in", expires_in, f"{error}, or None", self.name) from None
        _limiters().resize(self.rule, limit, duration_s)

    aresize = async_twin(resize)

    def reset(self, key: LimiterKey = None) -> None:
        """Set what is used of the key to zero; without a key, of the limiter and all of its keys. Holders of locks go on.

        Raises:
            ShardUnavailableError: as ``used``.
        """
        _limiters().reset(self.rule, None if key is None else _checked_key(key))

    areset = async_twin(reset)

    # Not by `within`: a job that is over the limit waits in Redis, not in a thread.
    def admit_job(self, payload: Payload, meta_prefix: str) -> Permit | None:
        """Admit one job without a wait; return its permit, ``None`` for a job that is not limited.

        Raises:
            OverLimit: the job is not admitted.
        """
        if self.rule.kind == "unlimited":
            return None
        key: LimiterKey = None
        if self.key_of_job is not None:
            by = self.key_of_job
            key = by(tuple(payload["args"])) if callable(by) else payload.get(meta_prefix + by)
            if key is None:
                return None
        checked = _checked_key(key)
        if callable(self.key_of_job) and is_encrypted(payload):
            checked = digest_of_key(self.name, checked)
        # A job that comes back is the same call, which has waited.
        waited = payload.get(OVER_LIMIT_BY) == self.name
        attempts = _Attempts(self, checked, 1, 0, waited=waited)
        attempts.try_once()
        if self.rule.kind == "concurrent":
            # The context is that of the run.
            note_held(self.name, checked, whole_job=True)
        return Permit(self, checked, attempts.token, 1)


class CallLimiter(Limiter):
    """Limit calls: ``concurrent``, ``bucket``, ``window``, ``leaky``."""

    def within(self, key: LimiterKey = None, *, used: int = 1) -> Within[Permit]:
        """Return a block that counts as ``used`` calls, and waits to be admitted as long as the limiter says.

        Each ``key``, a text or a number, has a limit of its own.

        Raises:
            OverLimit: the block is not admitted when it begins.
            ShardUnavailableError: the shard does not answer or refuses.
        """
        used = int(_amount("used", used, self.rule, minimum=1))
        if self.rule.kind == "concurrent" and used != 1:
            raise _invalid("used", used, "1: each block of a concurrent limiter has one lock", self.name)
        return Within(self, Permit, key, used)

    def awithin(self, key: LimiterKey = None, *, used: int = 1) -> AsyncWithin[Permit]:
        """Return as ``within``, for ``async with``."""
        return AsyncWithin(self.within(key, used=used))


class PointsLimiter(Limiter):
    """Limit points."""

    def within(self, key: LimiterKey = None, *, estimate: float = 1) -> Within[PointsPermit]:
        """Return a block that takes ``estimate`` points; ``permit.points_used(n)`` corrects them. Otherwise as ``CallLimiter``.

        Raises:
            OverLimit, ShardUnavailableError: as there.
        """
        return Within(self, PointsPermit, key, _amount("estimate", estimate, self.rule, minimum=0.0))

    def awithin(self, key: LimiterKey = None, *, estimate: float = 1) -> AsyncWithin[PointsPermit]:
        """Return as ``within``, for ``async with``."""
        return AsyncWithin(self.within(key, estimate=estimate))


def _checked_key(key: object) -> str:
    """Return a key as text; an empty one stands for the limiter as a whole."""
    if key is None:
        return ""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if isinstance(key, str) and key and key.isprintable() and len(key) <= _MAX_KEY:
        return key
    raise ValueError(
        f"key = {short_repr(key)} is not allowed. Allowed: a printable text of 1 to {_MAX_KEY} characters, or a whole number"
    )


def _amount(name: str, value: object, rule: LimiterRule, *, minimum: float) -> float:
    """Check an amount: a whole number, except for points."""
    kinds = (int, float) if rule.kind == "points" else (int,)
    if isinstance(value, kinds) and not isinstance(value, bool) and minimum <= value <= 1e15:
        return value
    number = "number" if rule.kind == "points" else "whole number"
    raise _invalid(name, value, f"a {number} from {minimum:g} to 10^15", rule.name)


def _invalid(name: str, value: object, allowed: str, limiter: str) -> ValueError:
    return ValueError(f"limiter {limiter!r}: {name} = {short_repr(value)} is not allowed. Allowed: {allowed}")
