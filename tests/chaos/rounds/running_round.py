"""Run one round: two shards, one of them with faults, and the records of their jobs."""

import time

from demo.stop import StopSignal
from tests.chaos.rounds.account import gone
from tests.chaos.rounds.call_load import CallLoad
from tests.chaos.rounds.effects import ENDED
from tests.chaos.rounds.faults import FaultInjector
from tests.chaos.rounds.guard_load import GuardLoad
from tests.chaos.rounds.policy_load import PolicyLoad
from tests.chaos.rounds.round_shard import RoundShard

_POLL_S = 0.02
_LINE_S = 2.0
_START_S = 60.0
_STANDSTILL_S = 60.0
"""The seconds without an end of a job after the last injection after which the missing jobs are lost."""


class RunningRound:
    """``faulty`` gets the injections between the calm seconds at both ends; ``control`` gets none."""

    def __init__(
        self,
        faulty: RoundShard,
        control: RoundShard,
        injector: FaultInjector,
        seconds: float,
        policy_load: PolicyLoad | None = None,
        guard_load: GuardLoad | None = None,
        call_load: CallLoad | None = None,
    ) -> None:
        self.faulty, self.control, self.injector = faulty, control, injector
        self.policy_load, self.guard_load, self.call_load = policy_load, guard_load, call_load
        self._loads = [load for load in (policy_load, guard_load, call_load) if load is not None]
        self.seconds = seconds
        self.calm_s = min(5.0, seconds / 8)
        """The calm time at the start and at the end: the baseline of the other shard."""
        self.started = self.shown = time.monotonic()

    @property
    def round_shards(self) -> tuple[RoundShard, RoundShard]:
        """Return both shards."""
        return self.faulty, self.control

    def run(self, stop: StopSignal) -> None:
        """Inject faults until the time is over, then let the worker processes finish; return when all is done or no job ends any
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
        for round_shard in self.round_shards:
            round_shard.producer.push_head_start()
            round_shard.workers.start()
        deadline = time.monotonic() + _START_S
        while not self._whole:
            if stop.wait(_POLL_S):
                return False
            for round_shard in self.round_shards:
                round_shard.workers.tend()
            if time.monotonic() > deadline:
                self.faulty.workers.unexpected.append(f"not all processes were ready within {_START_S:g} s")
                return False
        self.started = self.shown = time.monotonic()
        for round_shard in self.round_shards:
            round_shard.producer.start()
        for load in self._loads:
            load.begin(self.started)
        return True

    def _play(self, stop: StopSignal) -> None:
        healed_at = 0.0
        while not stop.wait(_POLL_S):
            now = time.monotonic()
            for round_shard in self.round_shards:
                round_shard.workers.tend()
                round_shard.read()
            passed = now - self.started
            for load in self._loads:
                load.step(now)
            if passed > self.seconds - self.calm_s:
                self.injector.finish()
            self.injector.step(now, inject=self.calm_s <= passed <= self.seconds - self.calm_s)
            over = passed > self.seconds and not self.injector.busy
            healed_at = (healed_at or now) if over else 0.0
            self._print_progress(now)
            done = self._all_done and self._whole
            if over and (done or now - max(healed_at, self.faulty.changed) > _STANDSTILL_S):
                break

    @property
    def _whole(self) -> bool:
        """Return whether all processes are at work: a process stopped during its start ends early, and that would be a
        finding.
        """
        return all(
            len(round_shard.workers.living) >= round_shard.workers.processes for round_shard in self.round_shards
        )

    @property
    def _all_done(self) -> bool:
        """Return whether every job is done; forgotten jobs never run."""
        faulty, control = self.round_shards
        ended = {effect.serial for effect in faulty.aside if effect.kind == ENDED}
        if any(len(ended) < len(load.accepted) for load in self._loads):
            return False
        if not (faulty.producer.done and control.producer.done and len(control.done) == control.producer.accepted):
            return False
        missing = faulty.producer.accepted - len(faulty.done)
        return not missing or missing == len(
            gone(faulty.producer.pushed_at, self.injector.injections).keys() - faulty.done
        )

    def _print_progress(self, now: float) -> None:
        if now - self.shown < _LINE_S:
            return
        self.shown = now
        faulty, control = self.round_shards
        again = sum(effect.kind == ENDED for effect in faulty.seen) - len(faulty.done)
        print(
            f"  {now - self.started:5.0f} s  {len(faulty.done):>8,} done, {faulty.producer.accepted - len(faulty.done):>6,} "
            f"waiting, {again} ended again, {len(self.injector.injections)} injections, {len(faulty.workers.living)} processes; "
            f"control {len(control.done):,} done",
            flush=True,
        )
