"""Push into the databases of a fake: the client of the product, with what the test decides."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from framework import middleware
from framework.all_settings import Settings
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest
from framework.feature import Late
from framework.features.consistency.push import PUSH_POSITIONS, PushPositions
from framework.features.encryption.arguments import ArgumentEncryption, encryption_of
from framework.features.encryption.blob_store import StoredBlob
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import ConfiguredProtection
from framework.features.flags.flag import Flag, is_class_flag
from framework.features.flags.process_flags import PROCESS_FLAGS, ProcessFlags
from framework.features.limiters.store import LimiterStore
from framework.features.results.calls import RESULTS
from framework.features.results.store import JobResults
from framework.features.tasks.access import IN_MEMORY, RECORDER, LazyRecorder
from framework.middleware.chain import SERVER, Call, Chain
from framework.push.argument_checks import StrictArgumentsCheck
from framework.push.client import Client
from framework.push.normalize import ExtraFields
from framework.push.protection import PayloadProtection
from framework.route.router import open_router
from framework.shard.shards import Shards
from framework.testing.fake_clock import FakeClock
from framework.testing.fake_redis import FakeShard
from framework.testing.fake_worker import FakeTools
from framework.testing.stubs import StubFlags, Stubs
from framework.types import Jid, Json
from framework.wire.protected import UNSIGNED_STATE
from framework.wiring.client import ProcessClient, open_limiter

_LIMITERS: Late[type[LimiterStore]] = Late("framework.features.limiters.store:LimiterStore")

OnPush = Callable[[Sequence[Jid]], None]


class FakeClient(ProcessClient):
    """Take the place of the client of the process. ``server_middlewares`` replace the application's; ``None`` keeps them."""

    def __init__(
        self,
        settings: Settings,
        stubs: Stubs,
        clock: FakeClock,
        fake_shards: Mapping[str, FakeShard],
        server_middlewares: Sequence[type[Any]] | None,
    ) -> None:
        self._settings = settings
        protection = fake_protection(settings)
        self._strict_arguments = StrictArgumentsCheck(settings.strict_arguments)
        self._server_middlewares = server_middlewares
        self.fake_shards = fake_shards
        shards = Shards(fake_shards, source=settings.config_file_label("redis.yml"))
        self.order: dict[Jid, int] = {}
        """Numbers the jobs as they are pushed: a clock that stands gives them the same time."""
        self.on_push: OnPush | None = None
        """Called with the ids of written jobs: the mode ``inline`` runs them."""
        self.on_written: Callable[[], None] | None = None
        """Called when jobs of a batch are written, which may have enqueued callbacks."""
        self._stubs = stubs
        self._records = LazyRecorder(settings, shards, protection, IN_MEMORY)
        """Records the jobs of recorded classes in a database in memory."""
        self._own_router, self._own_limiter = open_router(settings), open_limiter(settings, protection)
        self._client_calls = middleware.client.instantiate()
        # Not the constructor of the base, which opens shards.
        Client.__init__(
            self,
            shards,
            self._own_router,
            middleware=self._client_calls,
            limiter=self._own_limiter,
            strict_arguments=self._strict_arguments,
            protection=protection,
        )
        self._services[RECORDER] = self._records
        self.join_features()
        self._services[_LIMITERS] = stubs.limiters
        self._services[PROCESS_FLAGS] = StubbedFlags(stubs.flags, clock)
        self._services[PUSH_POSITIONS] = _positions_of(PushPositions(stubs.replicas))
        self._services[RESULTS] = FakeResults(self)

    def close_recorder(self) -> None:
        """Forget the database of recorded jobs."""
        self._records.close()

    def tools(self) -> FakeTools:
        """Return the parts that the workers of the faked shards share."""
        return FakeTools(
            self.settings,
            self._own_router,
            self._stubs,
            {name: shard.own for name, shard in self.fake_shards.items()},
            self.locks,
            self._own_limiter,
            self._client_calls,
            self.server_calls(),
            self._records,
            self.protection,
        )

    def server_calls(self) -> tuple[Call, ...]:
        if self._server_middlewares is None:
            return middleware.server.instantiate()
        chain = Chain(SERVER)
        for one in self._server_middlewares:
            chain.add(one)
        return chain.instantiate()

    def push(self, request: PushRequest) -> Jid | None:
        jid = super().push(request)
        if jid is not None:
            self._note((jid,))
        return jid

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        jids = super().push_bulk(request)
        self._note([jid for jid in jids if jid is not None])
        return jids

    def push_up_to(self, request: PushRequest, limit: int, max_new: int | None = None) -> list[Jid]:
        jids = super().push_up_to(request, limit, max_new)
        self._note(jids)
        return jids

    def collected_jobs_written(self, jids: Sequence[Jid]) -> None:
        self._note(jids)
        if self.on_written is not None:
            self.on_written()

    def _note(self, jids: Sequence[Jid]) -> None:
        for jid in jids:
            self.order[jid] = len(self.order)
        if jids and self.on_push is not None:
            self.on_push(jids)


class FakeResults(JobResults):
    """Find the results of jobs. No call waits: a job that has not run has none, and no other process runs it."""

    def __init__(self, client: ProcessClient) -> None:
        # Not the constructor of the base, which keeps each object until the end of the process.
        self._client = client
        self._signatures = UNSIGNED_STATE
        self._reset()
        self.caller = ""

    def watch(self, jid: Jid, request: PushRequest) -> "Future[bytes]":
        """See ``JobResults``: without an answer the wait ends at once."""
        del request
        future: Future[bytes] = Future()
        found, _ = self.find(jid)
        if found is not None:
            future.set_result(found)
        else:
            future.set_exception(TimeoutError("the job has not ended: run it, for example with drain()"))
        return future


class StubbedFlags(ProcessFlags):
    """Answer ``framework.flags`` from the flags of the test, and let the code under test set them."""

    def __init__(self, stub: StubFlags, clock: FakeClock) -> None:
        # Not the constructor of the base: no shard is read.
        self._stub = stub
        self._clock = clock

    def enabled(self, name: str, key: str | int | None = None) -> bool:
        return self._stub.enabled(name, key)

    def enabled_on(self, shard: str, name: str) -> bool:
        del shard
        return self._stub.enabled(name)

    @property
    def ready(self) -> bool:
        """Whether an answer needs no wait: always."""
        return True

    def set(self, flag: Flag, duration_s: float | None) -> Flag:
        now = self._clock()
        written = replace(flag, set_at=now, expires_at=None if duration_s is None else now + duration_s)
        self._stub.put(written)
        return written

    def clear(self, name: str) -> bool:
        found = self._stub.find(name) is not None
        self._stub.clear(name)
        return found

    def all(self) -> dict[str, Flag]:
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


class KeptBlobs:
    """See ``BlobStore``."""

    can_vanish = False

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[bytes, float]] = {}

    def put(self, name: str, data: bytes) -> None:
        self._blobs[name] = data, time.time()

    def get(self, name: str) -> bytes | None:
        found = self._blobs.get(name)
        return None if found is None else found[0]

    def delete(self, name: str) -> None:
        self._blobs.pop(name, None)

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        for name, (data, modified) in sorted(self._blobs.items()):
            if name.startswith(f"{prefix}/"):
                yield StoredBlob(name, len(data), modified)


def fake_protection(settings: Settings) -> PayloadProtection:
    """Return the protection of faked jobs: a test needs no key and no store, because what it pushes stays in its memory."""
    encryption = encryption_of(settings.encryption) or ArgumentEncryption.with_random_key()
    chosen = settings.payload_offload
    offload = None if chosen.url is None else PayloadOffload(KeptBlobs(), "memory", chosen.threshold)
    return ConfiguredProtection(encryption, offload=offload)
