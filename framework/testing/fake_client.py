"""Push into memory: the client of the product, with faked shards."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from framework import middleware
from framework.all_settings import Settings
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest
from framework.feature import Late
from framework.features.consistency.push import PUSH_POSITIONS, PushPositions
from framework.features.flags.flag import Flag, is_class_flag
from framework.features.flags.process_flags import PROCESS_FLAGS, ProcessFlags
from framework.features.leases.store import Leases
from framework.features.results.calls import RESULTS
from framework.middleware.chain import SERVER, Call, Chain
from framework.push.client import Client
from framework.push.normalize import ExtraFields
from framework.push.strict_arguments import StrictArgumentsCheck
from framework.route.loading import open_router
from framework.shard.shards import Shards
from framework.store.endpoints import endpoint_of
from framework.tasks.access import IN_MEMORY, LazyRecorder
from framework.testing.fake_clock import FakeClock
from framework.testing.memory import JobMemory
from framework.testing.memory_payloads import memory_protection
from framework.testing.memory_policies import Stubs
from framework.testing.memory_results import MemoryResults
from framework.testing.memory_shard import MemoryShard
from framework.testing.memory_worker import MemoryTools
from framework.testing.stubs import StubFlags
from framework.types import Jid, Json
from framework.wiring.client import ProcessClient, open_limiter

_LEASES: Late[type[Leases]] = Late("framework.features.leases.store:Leases")

OnPush = Callable[[Sequence[Jid]], None]


class FakeClient(ProcessClient):
    """Take the place of the client of the process. ``server_middlewares`` replace the application's; ``None`` keeps them."""

    def __init__(
        self, settings: Settings, stubs: Stubs, clock: FakeClock, server_middlewares: Sequence[type[Any]] | None
    ) -> None:
        self._settings = settings
        protection = memory_protection(settings)
        self._strict_arguments = StrictArgumentsCheck(settings.strict_arguments)
        self._server_middlewares = server_middlewares
        self.memory_shards = {
            name: MemoryShard(name, endpoint_of(settings, name), JobMemory(clock), clock) for name in settings.shards
        }
        self.on_push: OnPush | None = None
        """Called with the ids of written jobs: the mode ``inline`` runs them."""
        self._stubs = stubs
        self._fake_clock = clock
        self._limiters = stubs.limiters
        stubs.leases.clock = clock
        self.recorder = LazyRecorder(settings, Shards(self.memory_shards), protection, IN_MEMORY)
        """Records the jobs of recorded classes in a database in memory."""
        self._own_router, self._own_limiter = open_router(settings), open_limiter(settings)
        self._client_calls = middleware.client.instantiate()
        # Not the constructor of the base, which opens shards.
        Client.__init__(
            self,
            Shards(self.memory_shards),
            self._own_router,
            middleware=self._client_calls,
            limiter=self._own_limiter,
            strict_arguments=self._strict_arguments,
            recorder=self.recorder,
            protection=protection,
        )
        self.join_features()
        self._services[PROCESS_FLAGS] = MemoryFlags(stubs.flags, clock)
        self._services[PUSH_POSITIONS] = _positions_of(PushPositions(stubs.replicas))
        self._services[_LEASES] = stubs.leases
        self._services[RESULTS] = MemoryResults(self.memory_shards)

    def tools(self) -> MemoryTools:
        """Return the parts that the workers of the faked shards share."""
        return MemoryTools(
            self.settings,
            self._own_router,
            self._stubs,
            self._fake_clock,
            self.memory_shards,
            self.locks,
            self._own_limiter,
            self._client_calls,
            self.server_calls(),
            self.recorder,
            self.protection,
        )

    def server_calls(self) -> tuple[Call, ...]:
        """Return the server middlewares of this mode."""
        if self._server_middlewares is None:
            return middleware.server.instantiate()
        chain = Chain(SERVER)
        for one in self._server_middlewares:
            chain.add(one)
        return chain.instantiate()

    def push(self, request: PushRequest) -> Jid | None:
        """See ``Client``."""
        jid = super().push(request)
        if jid is not None and self.on_push is not None:
            self.on_push([jid])
        return jid

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """See ``Client``."""
        jids = super().push_bulk(request)
        self._note([jid for jid in jids if jid is not None])
        return jids

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None = None) -> list[Jid]:
        """See ``Client``."""
        jids = super().push_up_to(request, limit, max_new)
        self._note(jids)
        return jids

    def batch_jobs_written(self, jids: Sequence[Jid]) -> None:
        """See ``Client``."""
        self._note(jids)
        for shard in self.memory_shards.values():
            enqueued = shard.memory.batches.enqueued
            # A callback may enqueue another.
            while enqueued and self.on_push is not None:
                self._note([enqueued.pop(0)])

    def _note(self, jids: Sequence[Jid]) -> None:
        if jids and self.on_push is not None:
            self.on_push(jids)


class MemoryFlags(ProcessFlags):
    """Answer ``framework.flags`` from the flags of the test, and let the code under test set them."""

    def __init__(self, stub: StubFlags, clock: Callable[[], float]) -> None:
        # Not the constructor of the base: no shard is read.
        self._stub = stub
        self._clock = clock

    def enabled(self, name: str, key: str | int | None = None) -> bool:
        """See ``ProcessFlags``."""
        return self._stub.enabled(name, key)

    def enabled_on(self, shard: str, name: str) -> bool:
        """See ``ProcessFlags``."""
        del shard
        return self._stub.enabled(name)

    @property
    def ready(self) -> bool:
        """Whether an answer needs no wait: always."""
        return True

    def set(self, flag: Flag, duration_s: float | None) -> Flag:
        """See ``ProcessFlags``."""
        now = self._clock()
        written = replace(flag, set_at=now, expires_at=None if duration_s is None else now + duration_s)
        self._stub.put(written)
        return written

    def clear(self, name: str) -> bool:
        """See ``ProcessFlags``."""
        found = self._stub.find(name) is not None
        self._stub.clear(name)
        return found

    def all(self) -> dict[str, Flag]:
        """See ``ProcessFlags``."""
        found = {name: self._stub.find(name) for name in sorted(self._stub.names()) if not is_class_flag(name)}
        return {name: flag for name, flag in found.items() if flag is not None}


def _positions_of(positions: PushPositions) -> Callable[[Declaration], ExtraFields]:
    """Look the positions up at each push: a test may stub replicas after the first push of a class."""

    def fields_of(declaration: Declaration) -> ExtraFields:
        def look_up() -> dict[str, Json]:
            found = positions(declaration)
            return {} if found is None else dict(found())

        return look_up

    return fields_of
