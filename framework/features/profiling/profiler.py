"""Profile the runs of a job that was pushed with ``set(profile=True)``, with pyinstrument (the extra ``profile``).

The profile never decides about the job. Without the package, beside another profiler, or if the page cannot be kept, the job still
runs, and a log line says why there is no profile. The page is kept before the job is acknowledged.
"""

import asyncio
import gzip
import os
from abc import abstractmethod
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

import redis
from redis.exceptions import RedisError

from framework.declare.job_context import ExtraFields
from framework.execute.perform import AroundRun, RunCall
from framework.features.profiling.store import MAX_PROFILE_BYTES, JobProfile, keep_profile
from framework.telemetry.logs import LogRateLimit
from framework.text import error_class
from framework.version import install_extra
from framework.wire.job import PROFILE

_LOG_INTERVAL_S = 60.0
_INTERVAL_S = 0.001
_SAMPLES_AN_INTERVAL = 5_000
"""After so many samples the interval grows tenfold: 1 ms for 5 s of running Python code, 10 ms for the next 50 s, and so on."""

_log = LogRateLimit(_LOG_INTERVAL_S)


class Profiles(AroundRun):
    """The profiles of the runs of one process."""

    field = PROFILE

    @abstractmethod
    def keep(self, profile: JobProfile) -> bool:
        """Keep a profile; return whether it is kept. Raises nothing."""

    def run(self, instance: Any, call: RunCall) -> Coroutine[Any, Any, Any] | None:
        """Make the call under a profiler, or return a coroutine that runs the one of the call under a profiler."""
        run = _ProfiledRun(instance, self)
        # The call of an `async def` only makes the coroutine.
        coroutine = call() if instance.declaration().is_async else run.call(call)
        return None if coroutine is None else run.await_job(coroutine)

    def keep_of(self, instance: Any, duration_s: float, error: str, page: bytes) -> None:
        """Keep the profile of a run, and note that on its end line."""
        name = instance.declaration().wire_name
        if len(page) <= MAX_PROFILE_BYTES and self.keep(
            JobProfile(instance.jid, name, duration_s, error, len(page), page)
        ):
            if instance._aw_extra is None:
                instance._aw_extra = ExtraFields()
            instance._aw_extra.line["profile_bytes"] = len(page)


class RedisProfiles(Profiles):
    """Keep profiles on the shard of the process."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client

    def keep(self, profile: JobProfile) -> bool:
        """Keep a profile. Waits for Redis no longer than its commands may take."""
        try:
            keep_profile(self._client, profile)
        except (RedisError, OSError) as error:
            _warn(profile.jid, profile.cls, "Redis did not keep it", error=error)
            return False
        return True


class _ProfiledRun:
    def __init__(self, instance: Any, profiles: Profiles) -> None:
        self._instance = instance
        self._profiles = profiles
        self._pid = os.getpid()

    def call(self, call: RunCall) -> Coroutine[Any, Any, Any] | None:
        profiler = self._start("disabled")
        coroutine, error = None, ""
        try:
            coroutine = call()
        except BaseException as raised:
            error = error_class(raised)
            raise
        finally:
            session = self._stop(profiler)
            if coroutine is None:
                self._end(session, error)
        return coroutine

    async def await_job(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        profiler, error = self._start("enabled"), ""
        try:
            return await coroutine
        except BaseException as raised:
            error = error_class(raised)
            raise
        finally:
            session = self._stop(profiler)
            # Not on the event loop: other jobs run there.
            await asyncio.shield(asyncio.to_thread(self._end, session, error))

    def _start(self, async_mode: str) -> Any:
        try:
            profiler = import_module("pyinstrument").Profiler(_INTERVAL_S, async_mode)
            _thin_out(profiler)
            profiler.start(target_description=self._title)
        except ImportError as error:
            remedy = f"the package pyinstrument is not installed here: {install_extra('profile')}"
            self._warn(remedy, error=error)
            return None
        except (RuntimeError, ValueError) as error:
            self._warn("another profiler runs in this thread or task", error=error)
            return None
        return profiler

    def _stop(self, profiler: Any) -> Any:
        if profiler is None:
            return None
        try:
            return profiler.stop()
        except RuntimeError as error:
            self._warn("the job has stopped the profiler", error=error)
            return None

    def _end(self, session: Any, error: str) -> None:
        # A process that the job has forked has a copy of the profiler.
        if session is None or os.getpid() != self._pid:
            return
        try:
            html = import_module("pyinstrument.renderers").HTMLRenderer().render(session)
            page = gzip.compress(html.encode())
        except Exception as failure:  # noqa: BLE001 - the job's outcome stays as it is, whatever the package raises
            self._warn("the page could not be made", error=failure)
            return
        if len(page) > MAX_PROFILE_BYTES:
            self._warn(f"the page has {len(page):,} bytes in gzip, and at most {MAX_PROFILE_BYTES:,} are kept")
            return
        self._profiles.keep_of(self._instance, session.duration, error, page)

    @property
    def _title(self) -> str:
        return f"{self._instance.declaration().wire_name} {self._instance.jid}"

    def _warn(self, reason: str, **fields: Any) -> None:
        _warn(self._instance.jid, self._instance.declaration().wire_name, reason, **fields)


def _thin_out(profiler: Any) -> None:
    """Let the profiler keep fewer and fewer samples of a long run. It has no setting for that, and a sample takes 5 KB of memory.

    The time of a sample that is left out goes to the next one. A long wait is one long sample, which is always kept.
    """
    keep_sample, kept, left_out_s = profiler._sampler_saw_call_stack, 0, 0.0

    def thin_out(call_stack: list[str], since_last_s: float, async_state: object) -> None:
        nonlocal kept, left_out_s
        left_out_s += since_last_s
        if left_out_s >= _INTERVAL_S * 10 ** (kept // _SAMPLES_AN_INTERVAL):
            keep_sample(call_stack, left_out_s, async_state)
            kept, left_out_s = kept + 1, 0.0

    profiler._sampler_saw_call_stack = thin_out


def _warn(jid: str, name: str, reason: str, **fields: Any) -> None:
    _log.warning(
        reason,
        f"the job was to be profiled, and runs without a kept profile: {reason}",
        "profile.not_kept",
        jid=jid,
        reason=reason,
        **{"class": name},
        **fields,
    )
