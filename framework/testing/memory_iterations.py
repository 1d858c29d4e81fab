"""Keep the cursors of iterating jobs in memory: the counterpart of ``start_iteration.lua`` and ``save_iteration.lua``."""

from typing import TYPE_CHECKING, Any

from framework.declare.iteration import StopReason
from framework.execute.early_end import cancelled_jid
from framework.execute.iterations import Iterations, RedisIteration
from framework.execute.stats import RunningJobs
from framework.fetch.unit_of_work import UnitOfWork
from framework.store.script import START_ITERATION, Script
from framework.testing.memory import JobMemory
from framework.testing.memory_policies import IDENTITY, Stubs
from framework.types import Payload

if TYPE_CHECKING:
    import redis


class MemoryIterations(Iterations):
    """The iterating jobs of one faked shard."""

    def __init__(
        self, memory: JobMemory, client: "redis.Redis", runs: RunningJobs, stubs: Stubs, max_runtime_s: float | None
    ) -> None:
        super().__init__(client, IDENTITY, runs, max_runtime_s)
        self.memory = memory
        self.stubs = stubs

    def prepare(self, instance: Any, unit: UnitOfWork, payload: Payload) -> None:
        """See ``Iterations``."""
        self.adopt(instance, _MemoryIteration(self, unit, payload))


class _MemoryIteration(RedisIteration):
    """One run, whose scripts act on memory."""

    def __init__(self, iterations: MemoryIterations, unit: UnitOfWork, payload: Payload) -> None:
        super().__init__(iterations, unit, payload)
        self._memory = iterations.memory
        self._stubs = iterations.stubs
        self._payload = payload

    def stop_reason(self) -> StopReason | None:
        """See ``IterationRun``. A test may stop runs after some items."""
        most = self._stubs.interrupt_every
        return super().stop_reason() or ("stop" if most is not None and self.items >= most else None)

    def _run_script(self, script: Script, *more: Any) -> Any:
        state = self._memory.iteration(self.jid)
        if script is START_ITERATION:
            state[b"ex"] = b"%d" % (int(state.get(b"ex", b"0")) + 1)
            return [part for pair in state.items() for part in pair]
        for name, value in zip(more[::2], more[1::2], strict=True):
            state[name.encode()] = value if isinstance(value, bytes) else str(value).encode()
        return 1 if cancelled_jid(self._payload, self._memory.cancelled) is None else 2
