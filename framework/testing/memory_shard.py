"""Stand for a shard of the configuration: the pushes of the product write into memory."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Never, cast

from framework.declare.batch_port import BatchStatus, KeptResult
from framework.declare.workflow_port import WorkflowStatus
from framework.errors import PushError, ShardUnavailableError
from framework.shard.batch_reader import batch_status, sorted_results
from framework.shard.shard import Shard
from framework.shard.workflow_reader import batches_of, workflow_status
from framework.store.connect import Endpoint
from framework.testing.memory import JobMemory, marked_duplicate
from framework.testing.memory_windows import push_window
from framework.types import Jid
from framework.wire import keys
from framework.wire.batch_fields import BatchAction, BatchMembers, BatchReply, BatchWrite
from framework.wire.json import loads
from framework.wire.resources import UniqueJobs
from framework.wire.status_key import StatusCommand
from framework.wire.sub_queues import parent_of
from framework.wire.windows import WindowJobs
from framework.wire.workflow_fields import WorkflowAction, WorkflowEvent

if TYPE_CHECKING:
    import redis


_ENDED = frozenset({b"completed", b"failed", b"discarded", b"expired", b"cancelled"})
"""The last states of tracked jobs."""


class NoRedis:
    """Stand for the Redis client of a faked shard. Every use is an error that says what to do."""

    def __init__(self, shard: str) -> None:
        self._shard = shard

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        raise PushError(
            f"the shard '{self._shard}' is faked and has no Redis, so {name}() cannot be called on its pool. Use "
            "`with framework.testing.real():`, or replace this call in the test."
        )


class MemoryShard(Shard):
    """Take the place of one shard. ``memory`` has its jobs."""

    def __init__(self, name: str, endpoint: Endpoint, memory: JobMemory, now: Callable[[], float]) -> None:
        # Not the constructor of the base, which opens clients.
        self.name = name
        self.endpoint = endpoint
        self.role = "fake"
        self.client = self.pool = cast("redis.Redis", NoRedis(name))
        self.memory = memory
        self.available = True
        """Whether the shard answers; a test may say that it does not."""
        self._now = now

    def open_client(self, role: str, *, read_timeout_s: float) -> "redis.Redis":
        """Return a client that refuses every command."""
        del role, read_timeout_s
        return self.client

    def enqueue_one(self, queue: str, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """See ``Shard``."""
        self.enqueue(queue, (payload,), "", status_commands)

    def enqueue(
        self, queue: str, payloads: Sequence[bytes], token: str, status_commands: Sequence[StatusCommand] = ()
    ) -> None:
        """See ``Shard``."""

        def write() -> None:
            self._write_statuses(status_commands)
            for payload in payloads:
                self.memory.add("queue", payload, parent_of(queue))

        self._check_available()
        self.memory.once(token, write)

    def schedule(
        self, entries: Sequence[tuple[float, bytes]], token: str, status_commands: Sequence[StatusCommand] = ()
    ) -> None:
        """See ``Shard``."""

        def write() -> None:
            self._write_statuses(status_commands)
            for at, payload in entries:
                self.memory.add("schedule", payload, due=at)

        self._check_available()
        self.memory.once(token, write)

    def schedule_one(self, at: float, payload: bytes, status_commands: Sequence[StatusCommand] = ()) -> None:
        """See ``Shard``."""
        self.schedule([(at, payload)], "", status_commands)

    def schedule_in(self, delay_s: float, payload: bytes, statuses: Sequence[StatusCommand] = ()) -> float:
        """See ``Shard``."""
        now = self.time()
        self.schedule([(now + delay_s, payload)], "", statuses)
        return now

    def time(self) -> float:
        """Return the time of the fake's clock."""
        self._check_available()
        return self._now()

    def is_pushed(self, token: str) -> bool:
        """See ``Shard``."""
        return self.memory.was_done(token)

    def enqueue_unique(self, queue: str | None, jobs: UniqueJobs, token: str = "") -> list[Jid]:
        """See ``Shard`` and ``push_unique.lua``."""
        self._check_available()
        found: list[Jid] = self.memory.once(token, lambda: self._enqueue_unique(queue, jobs))
        return found

    def _enqueue_unique(self, queue: str | None, jobs: UniqueJobs) -> list[Jid]:
        if isinstance(jobs, WindowJobs):
            return push_window(self.memory, jobs, self.time())
        _, ttl_ms, drops, _, shared = jobs.terms
        owners: list[Jid] = []
        details = jobs.details or [cast("bytes", shared)] * len(jobs.jids)
        for payload, key, jid, encoded in zip(jobs.payloads, jobs.lock_keys, jobs.jids, details, strict=True):
            more: Any = loads(encoded, None) if encoded else {}
            owner = self.memory.holder(key, jid)
            owners.append(owner)
            if owner and drops:
                self.memory.note_duplicate(key)
                continue
            due = self._due(more)
            if not owner:
                wait_s = 0.0 if due is None else max(0.0, due - self.time())
                expires_in = float(more.get("expires_in", 0))
                terms = {"expiry": self.time() + wait_s + expires_in} if expires_in else {}
                self.memory.take_lock(key, jid, float(ttl_ms) + wait_s * 1000, terms)
            if more.get("status"):
                state, mode, seconds = more["status"]
                self.memory.set_state(keys.status(jid), state, mode, float(seconds))
            data = marked_duplicate(payload, owner) if owner else payload
            self.memory.add("schedule" if queue is None else "queue", data, parent_of(queue or ""), due)
        return owners

    def _due(self, details: dict[str, Any]) -> float | None:
        if details.get("delay"):
            return self.time() + float(details["delay"])
        return float(details["due"]) if details.get("due") else None

    def enqueue_up_to(self, limit: str, most: int, jobs: Sequence[tuple[str, bytes, Jid]]) -> tuple[int, int]:
        """See ``Shard`` and ``push_up_to.lua``."""
        self._check_available()
        with self.memory.step:
            taken = self.memory.slots(limit)
            written = jobs[: max(0, most - len(taken))]
            for queue, payload, jid in written:
                taken.add(f" {jid}")
                self.memory.add("queue", payload, queue)
            return len(written), max(0, most - len(taken))

    def close(self) -> None:
        """Close nothing."""

    def write_status(self, command: StatusCommand) -> None:
        """See ``Shard``."""
        self._check_available()
        _, key, state, mode, seconds = command
        self.memory.set_state(key, state, mode, float(seconds))

    def write_batch(self, write: BatchWrite) -> BatchReply:
        """See ``Shard`` and ``batch_push.lua``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.write(write, lambda: self._add_batch_jobs(write))

    def _add_batch_jobs(self, write: BatchWrite) -> list[list[Any]]:
        dropped: list[list[Any]] = []
        self._write_statuses([("SET", *words) for words in write.statuses])
        for number, group in enumerate(write.groups):
            for index, data in enumerate(group.payloads):
                request: Any = loads(group.lock_requests.get(index, "{}").encode())
                owner = self.memory.holder(request["key"], request["jid"]) if request else ""
                if owner and request["drops"]:
                    self.memory.note_duplicate(request["key"])
                    if request.get("mark"):
                        self.write_status(request["mark"])
                    dropped.append([number, index, owner])
                    continue
                due = None if not group.dues else self._batch_due(group.dues[index])
                if request and not owner:
                    wait_s = 0.0 if due is None else max(0.0, due - self.time())
                    self.memory.take_lock(request["key"], request["jid"], request["ttl_ms"] + wait_s * 1000, request)
                stored = marked_duplicate(data, owner) if owner else data
                self.memory.add("queue" if group.queue else "schedule", stored, parent_of(group.queue), due)
        return dropped

    def _batch_due(self, due: str) -> float:
        return self.time() + float(due) if due.startswith("+") else float(due)

    def change_batch(self, bid: str, action: BatchAction, event: str = "", callback: bytes = b"") -> int:
        """See ``Shard`` and ``batch_change.lua``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.change(bid, action, event, callback)

    def read_batch(self, bid: str) -> BatchStatus | None:
        """See ``Shard``. A batch of a fake does not expire."""
        self._check_available()
        with self.memory.step:
            found = self.memory.batches.fields(bid)
            return None if found is None else batch_status(bid, self.name, *found, -1, self.time())

    def batch_results(self, bid: str) -> list[KeptResult]:
        """See ``Shard``."""
        self._check_available()
        with self.memory.step:
            return sorted_results(bid, self.memory.batches.results(bid))

    def batch_members(self, bid: str, kind: BatchMembers) -> Iterator[str]:
        """See ``Shard``."""
        self._check_available()
        yield from self.memory.batches.members(bid, kind)

    def change_workflow(
        self,
        workflow_id: str,
        action: WorkflowAction,
        facts: bytes = b"",
        lists: Sequence[str] = (),
        numbers: Sequence[int] = (),
    ) -> bool:
        """See ``Shard`` and ``workflow_change.lua``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.workflows.change(workflow_id, action, facts, lists, numbers)

    def advance_workflow(
        self, workflow_id: str, step: str, event: WorkflowEvent, after_success: str, after_failure: str
    ) -> tuple[str, str]:
        """See ``Shard`` and ``workflow_advance.lua``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.workflows.advance(workflow_id, step, event, after_success, after_failure)

    def read_workflow(self, workflow_id: str) -> dict[str, str] | None:
        """See ``Shard``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.workflows.fields(workflow_id)

    def workflow_status(self, workflow_id: str) -> WorkflowStatus | None:
        """See ``Shard``. A workflow of a fake does not expire."""
        fields = self.read_workflow(workflow_id)
        if fields is None:
            return None
        found = [self.read_batch(bid) for bid in batches_of(workflow_id, fields)]
        batches = {one.bid: one for one in found if one is not None}
        return workflow_status(workflow_id, self.name, fields, -1, self.time(), batches)

    def add_step_parts(self, place: str, parts: Iterable[bytes]) -> int:
        """See ``Shard``."""
        self._check_available()
        made = list(parts)
        with self.memory.step:
            return self.memory.batches.workflows.add_parts(place, made)

    def step_part(self, place: str, number: int) -> bytes | None:
        """See ``Shard``."""
        self._check_available()
        with self.memory.step:
            return self.memory.batches.workflows.part(place, number)

    def states(self, jids: Sequence[Jid]) -> Sequence[bytes | None]:
        """See ``Shard``."""
        self._check_available()
        return [self.memory.state(keys.status(jid)) for jid in jids]

    def result(self, jid: Jid) -> tuple[bytes | None, bytes | None]:
        """See ``Shard``."""
        self._check_available()
        return self.memory.result(jid), self.memory.state(keys.status(jid))

    def cancel(self, jids: Sequence[Jid]) -> list[bool]:
        """See ``Shard`` and ``mark_cancelled.lua``."""
        self._check_available()
        marked = [self.memory.state(keys.status(jid)) not in _ENDED for jid in jids]
        self.memory.cancelled.update(jid for jid, is_marked in zip(jids, marked, strict=True) if is_marked)
        return marked

    def _check_available(self) -> None:
        if not self.available:
            raise ShardUnavailableError(self.name, "the test says so", advice="fake().unavailable() of the test")

    def _write_statuses(self, commands: Sequence[StatusCommand]) -> None:
        for command in commands:
            self.write_status(command)
