"""Add called and profiled jobs to a round: each call must end, once, with the answer of the job's last run; then check what is left.

One thread pushes the calls and waits for their answers, some on an event loop and some in threads. ``found`` compares them with the
records of the jobs (``effects``).
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis import Redis

from framework.errors import FrameworkError, JobDiscardedError, JobFailedError, ResultError
from framework.features.profiling.store import MAX_PROFILES, JobProfile, read_profile, read_profiles
from framework.features.results.calls import JobCall
from tests.chaos.rounds.account import Account, Run, account, runs_of
from tests.chaos.rounds.effects import Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import (
    CALLED,
    PROFILED,
    CalledApartWorker,
    CalledTwiceWorker,
    CalledWorker,
    ProfiledWorker,
    way_of,
)
from tests.chaos.rounds.producer import AcceptedPushes

RESULT_TTL_S = 120
_PERIOD_S = 0.15
_PROFILE_PERIOD_S = 0.5
_PAUSE_S = 0.2
_PATIENCE_S = 120.0
"""How long a caller waits: longer than every fault, and the retries after it."""
_JOIN_S = 150.0
_MOST_OF_A_KIND = 10_000_000
_ENDS = {"fails": JobFailedError, "discards": JobDiscardedError}
"""The error with which a call of a way ends; the others end with a value."""
_WORKERS = {"apart": CalledApartWorker, "retries": CalledTwiceWorker}


class Answer(NamedTuple):
    """The end of one call, and when its caller had it (monotonic seconds)."""

    at: float
    value: Any = None
    error: ResultError | None = None


class Calls(NamedTuple):
    """The results."""

    called: Account
    """The results of the called jobs."""
    pushed: int
    """The accepted calls."""
    ends: Counter[str]
    """How many calls ended with a value, and with each error."""
    unanswered: list[str]
    """Calls without an end after the patience of their caller."""
    wrong: list[str]
    """Calls whose end is not that of the job's last run."""
    ran_again: list[str]
    """Jobs that began again after their caller had the answer."""
    profiled: Account
    """The results of the profiled jobs."""
    pages: int
    """The kept profiles."""
    bad_pages: list[str]
    """Profiles that cannot be read, or name no job of the round; or more than a shard keeps."""
    refusals: Counter[str]
    """The number of failed pushes, by the kind of error."""
    untyped: list[str]
    """Errors that are not the framework's."""


@dataclass
class CallLoad:
    """``begin`` starts the thread. ``accepted`` has the serials of all accepted jobs."""

    seconds: float
    rng: random.Random
    accepted: list[int] = field(default_factory=list[int])
    refusals: Counter[str] = field(default_factory=Counter[str])
    untyped: list[str] = field(default_factory=list[str])
    """Errors that are not the framework's."""
    _doubts: dict[int, Counter[int]] = field(default_factory=dict[int, Counter[int]])
    _times: dict[int, AcceptedPushes] = field(default_factory=dict[int, AcceptedPushes])
    _answers: dict[int, Answer] = field(default_factory=dict[int, Answer])
    _profiled_jids: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._times = {base: AcceptedPushes([], []) for base in (CALLED, PROFILED)}
        self._doubts = {base: Counter() for base in self._times}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._push_all()), name="caller", daemon=True)

    def begin(self, _now: float) -> None:
        """Start with the round."""
        self._thread.start()

    def step(self, _now: float) -> None:
        """Do nothing: the thread goes on by itself."""

    async def _push_all(self) -> None:
        until = time.monotonic() + self.seconds
        await asyncio.gather(self._push_calls(until), self._push_profiled(until))

    async def _push_calls(self, until: float) -> None:
        waiting: list[asyncio.Task[None]] = []
        serial = 0
        while time.monotonic() < until:
            one = await self._push(CALLED, serial, until)
            if one is None:
                break
            waiting.append(asyncio.create_task(self._wait(serial, one)))
            serial += 1
            await asyncio.sleep(_PERIOD_S)
        await asyncio.gather(*waiting)

    async def _push_profiled(self, until: float) -> None:
        serial = 0
        while time.monotonic() < until and (jid := await self._push(PROFILED, serial, until)) is not None:
            self._profiled_jids.add(jid)
            serial += 1
            await asyncio.sleep(_PROFILE_PERIOD_S)

    async def _push(self, base: int, serial: int, until: float) -> Any:
        """Push until Redis has accepted the job; ``None`` if the time is over. After a push in doubt the job may run twice."""
        milliseconds = round(self.rng.uniform(10, 40), 1)
        while time.monotonic() < until:
            begun = time.monotonic()
            try:
                pushed = await _pushed(base, serial, milliseconds)
            except FrameworkError as error:
                in_doubt = bool(getattr(error, "maybe_written", False))
                self.refusals[f"{type(error).__name__}{', maybe written' if in_doubt else ''}"] += 1
                self._doubts[base][serial] += int(in_doubt)
                await asyncio.sleep(_PAUSE_S)
            except Exception as error:  # noqa: BLE001 - the round looks for errors of any other kind
                self.untyped.append(repr(error))
                self._doubts[base][serial] += 1
                await asyncio.sleep(_PAUSE_S)
            else:
                times: Any = self._times[base]
                times.begun_at.append(begun)
                times.answered_at.append(time.monotonic())
                self.accepted.append(base + serial)
                return pushed
        return None

    async def _wait(self, serial: int, call: JobCall[Any]) -> None:
        value = error = None
        try:
            if serial % 2:
                value = await asyncio.to_thread(call.result, _PATIENCE_S)
            else:
                value = await call.aresult(_PATIENCE_S)
        except ResultError as ended:
            error = ended
        except Exception as failure:  # noqa: BLE001 - as above
            self.untyped.append(f"call of {serial}: {failure!r}")
            return
        self._answers[serial] = Answer(time.monotonic(), value, error)

    def found(self, aside: Sequence[Effect], injections: Sequence[Injection], client: Redis) -> Calls:
        """Check the records, given all injections; ``client`` is that of the shard."""
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        of = {
            base: [one._replace(serial=one.serial - base) for one in aside if 0 <= one.serial - base < _MOST_OF_A_KIND]
            for base in self._times
        }
        runs = runs_of(of[CALLED])
        pages, bad = self._pages(client)
        return Calls(
            called=account(self._times[CALLED], of[CALLED], injections, self._doubts[CALLED]),
            pushed=len(self._times[CALLED].begun_at),
            ends=Counter("value" if one.error is None else type(one.error).__name__ for one in self._answers.values()),
            unanswered=[
                str(serial) for serial in range(len(self._times[CALLED].begun_at)) if not self._has_end(serial)
            ],
            wrong=[text for serial, one in sorted(self._answers.items()) if (text := self._wrong(serial, one, runs))],
            ran_again=list(self._ran_again(runs)),
            profiled=account(self._times[PROFILED], of[PROFILED], injections, self._doubts[PROFILED]),
            pages=pages,
            bad_pages=bad,
            refusals=self.refusals,
            untyped=self.untyped,
        )

    def _has_end(self, serial: int) -> bool:
        answer = self._answers.get(serial)
        return answer is not None and not isinstance(answer.error, TimeoutError)

    def _wrong(self, serial: int, answer: Answer, runs: Mapping[int, list[Run]]) -> str:
        if isinstance(answer.error, TimeoutError):
            return ""
        way, error = way_of(serial), answer.error
        expected = _ENDS.get(way)
        if (error is None) is (expected is not None) or (expected is not None and type(error) is not expected):
            return f"{serial} ({way}): {answer.value if error is None else error!r}"
        # Of two jobs with one serial each may have answered.
        if error is not None or self._doubts[CALLED][serial]:
            return ""
        last = runs[serial][-1] if runs.get(serial) else None
        told = answer.value if isinstance(answer.value, dict) else {}
        if last is None or told.get("serial") != serial or told.get("pid") != last.pid:
            return f"{serial}: {answer.value}, and the last run was {last}"
        return ""

    def _ran_again(self, runs: Mapping[int, list[Run]]) -> Sequence[str]:
        return [
            f"{serial} at {run.begun:.3f}"
            for serial, own in runs.items()
            for run in own
            if self._has_end(serial) and not self._doubts[CALLED][serial] and run.begun > self._answers[serial].at
        ]

    def _pages(self, client: Redis) -> tuple[int, list[str]]:
        kept = read_profiles(client, "main")
        bad = [f"{len(kept)} are kept"] if len(kept) > MAX_PROFILES else []
        for one in kept:
            page = read_profile(client, "main", one.jid)
            # A job whose push was in doubt has an id that its producer does not know.
            known = one.jid in self._profiled_jids or self._doubts[PROFILED].total()
            if not known or page is None or not _is_page(page):
                bad.append(one.jid)
        return len(kept), bad


def _is_page(profile: JobProfile) -> bool:
    """Return whether the page can be read, and names its job in its title."""
    with suppress(ValueError):
        return f"ProfiledWorker {profile.jid}" in profile.html
    return False


async def _pushed(base: int, serial: int, milliseconds: float) -> Any:
    if base == PROFILED:
        return await asyncio.to_thread(ProfiledWorker.set(profile=True).perform_async, base + serial, milliseconds)
    worker: Any = _WORKERS.get(way_of(serial), CalledWorker)
    chosen = worker.set(result_ttl=RESULT_TTL_S)
    if serial % 2:
        return await asyncio.to_thread(chosen.call, base + serial, milliseconds)
    return await chosen.acall(base + serial, milliseconds)
