"""Write and read the workflows of one shard: the part of ``Shard`` that concerns them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import redis
from redis.exceptions import RedisError

from framework.declare.workflow_port import WorkflowStatus
from framework.shard.connection import ShardConnection
from framework.shard.redis_errors import unavailable_error
from framework.shard.workflow_reader import add_parts, read_fields, read_workflows
from framework.store.connect import Endpoint
from framework.store.script import WORKFLOW_ADVANCE, WORKFLOW_CHANGE
from framework.wire import keys
from framework.wire.workflow_fields import WorkflowAction, WorkflowEvent, step_bid

T = TypeVar("T")


class WorkflowStore:
    """The workflows of a shard. Every method raises ShardUnavailableError when Redis does not answer or refuses."""

    name: str
    endpoint: Endpoint
    client: "redis.Redis"
    _connection: ShardConnection

    def change_workflow(
        self,
        workflow_id: str,
        action: WorkflowAction,
        facts: bytes = b"",
        lists: Sequence[str] = (),
        numbers: Sequence[int] = (),
    ) -> bool:
        """Change a workflow (``workflow_change.lua``); return whether the shard has it."""
        names = (keys.workflow(workflow_id), keys.WORKFLOWS, *lists)
        return bool(self._connection.run_script(WORKFLOW_CHANGE, names, (workflow_id, action, facts, *numbers)))

    def advance_workflow(
        self, workflow_id: str, step: str, event: WorkflowEvent, after_success: str, after_failure: str
    ) -> tuple[str, str]:
        """Note the end of a step (``workflow_advance.lua``); return the answer and its step or state."""
        names = (
            keys.workflow(workflow_id),
            keys.batch(step_bid(workflow_id, step)),
            keys.step_jobs(workflow_id, step),
        )
        arguments = (step, event, after_success, after_failure)
        answer, *rest = self._connection.run_script(WORKFLOW_ADVANCE, names, arguments)
        return answer.decode(), rest[0].decode() if rest else ""

    def read_workflow(self, workflow_id: str) -> dict[str, str] | None:
        """Return the fields of a workflow, ``None`` if this shard does not have it."""
        return self._reading(lambda: read_fields(self.client, workflow_id))

    def workflow_status(self, workflow_id: str) -> WorkflowStatus | None:
        """Return the status of a workflow, ``None`` if this shard does not have it."""
        return self._reading(lambda: next(iter(read_workflows(self.client, self.name, [workflow_id])), None))

    def add_step_parts(self, place: str, parts: Iterable[bytes]) -> int:
        """Append the parts of a step's jobs to a list; return how many."""
        return self._reading(lambda: add_parts(self.client, place, parts))

    def step_part(self, place: str, number: int) -> bytes | None:
        """Return a part of a step's jobs, from 1 on, ``None`` if the list does not have it."""
        found: Any = self._reading(lambda: self.client.lrange(place, number - 1, number - 1))
        return found[0] if found else None

    def _reading(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except (RedisError, OSError) as error:
            raise unavailable_error(self.name, self.endpoint, error) from error
