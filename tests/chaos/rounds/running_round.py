"""Run one round: two shards, one of them with faults, and the records of their jobs."""

import time

from demo.stop import StopSignal
from tests.chaos.rounds.account import gone
from tests.chaos.rounds.effects import ENDED
from tests.chaos.rounds.faults import FaultInjector
from tests.chaos.rounds.policy_load import PolicyLoad
from tests.chaos.rounds.side import Side

_LOOK_S = 0.02
_LINE_S = 2.0
_START_S = 60.0
_STANDSTILL_S = 60.0
"""The seconds without an end of a job after the last injection after which the missing jobs are lost."""


class RunningRound:
    """``struck`` gets the injections between the calm seconds at both ends; ``beside`` gets none."""

    def __init__(
        self, struck: Side, beside: Side, injector: FaultInjector, seconds: float, policy_load: PolicyLoad | None = None
    ) -> None:
        self.struck, self.beside, self.injector, self.policy_load = struck, beside, injector, policy_load
        self.seconds = seconds
        self.calm_s = min(5.0, seconds / 8)
        """The calm time at the start and at the end: the baseline of the other shard."""
        self.started = self.shown = time.monotonic()

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return both shards."""
        return self.struck, self.beside

    def play(self, stop: StopSignal) -> None:
        """Inject faults until the time is over, then let the fleets finish; return when all is done or no job ends any
        more.
        """
        try:
            if self._begin(stop):
                self._play(stop)
        finally:
            self.injector.abandon()

    def _begin(self, stop: StopSignal) -> bool:
        """Start all processes; the clock runs from when all are at work, as their start costs the machine more than any
        injection.
        """
        for side in self.sides:
            side.producer.push_head_start()
            side.fleet.start()
        deadline = time.monotonic() + _START_S
        while not self._whole:
            if stop.wait(_LOOK_S):
                return False
            for side in self.sides:
                side.fleet.tend()
            if time.monotonic() > deadline:
                self.struck.fleet.surprises.append(f"not all processes were ready within {_START_S:g} s")
                return False
        self.started = self.shown = time.monotonic()
        for side in self.sides:
            side.producer.start()
        if self.policy_load is not None:
            self.policy_load.begin(self.started)
        return True

    def _play(self, stop: StopSignal) -> None:
        healed_at = 0.0
        while not stop.wait(_LOOK_S):
            now = time.monotonic()
            for side in self.sides:
                side.fleet.tend()
                side.read()
            passed = now - self.started
            if self.policy_load is not None:
                self.policy_load.look(now)
            if passed > self.seconds - self.calm_s:
                self.injector.finish()
            self.injector.look(now, strike=self.calm_s <= passed <= self.seconds - self.calm_s)
            over = passed > self.seconds and not self.injector.busy
            healed_at = (healed_at or now) if over else 0.0
            self._tell(now)
            done = self._all_done and self._whole
            if over and (done or now - max(healed_at, self.struck.changed) > _STANDSTILL_S):
                break

    @property
    def _whole(self) -> bool:
        """Return whether all processes are at work: a process stopped during its start ends early, and that would be a
        finding.
        """
        return all(len(side.fleet.living) >= side.fleet.processes for side in self.sides)

    @property
    def _all_done(self) -> bool:
        """Return whether every job is done; forgotten jobs never run."""
        struck, beside = self.sides
        ended = {effect.serial for effect in struck.aside if effect.kind == ENDED}
        if self.policy_load is not None and len(ended) < len(self.policy_load.accepted):
            return False
        if not (struck.producer.done and beside.producer.done and len(beside.done) == beside.producer.accepted):
            return False
        missing = struck.producer.accepted - len(struck.done)
        return not missing or missing == len(
            gone(struck.producer.accepted_at, self.injector.injections).keys() - struck.done
        )

    def _tell(self, now: float) -> None:
        if now - self.shown < _LINE_S:
            return
        self.shown = now
        struck, beside = self.sides
        again = sum(effect.kind == ENDED for effect in struck.seen) - len(struck.done)
        print(
            f"  {now - self.started:5.0f} s  {len(struck.done):>8,} done, {struck.producer.accepted - len(struck.done):>6,} "
            f"waiting, {again} ended again, {len(self.injector.injections)} injections, {len(struck.fleet.living)} processes; "
            f"beside {len(beside.done):,} done",
            flush=True,
        )
