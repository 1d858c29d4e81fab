"""Define what a workflow asks of the client: to start it, to start its steps, to read and to change it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from framework.declare.declaration import Declaration
from framework.feature import Late
from framework.wire.workflow_fields import StepCondition, WorkflowCommand, WorkflowEvent

StepState: TypeAlias = Literal["waiting", "starting", "running", "succeeded", "failed", "cancelled", "skipped"]
"""Starting: its jobs are being written. Skipped: the workflow has ended, and the step was not needed."""

WorkflowState: TypeAlias = Literal["waiting", "running", "succeeded", "failed", "cancelled"]
"""Waiting: its first step has not begun to start. Failed: it has ended, and a step of it has failed."""


@dataclass(frozen=True, slots=True)
class StepStatus:
    """The known facts of a step. Times are epoch seconds of Redis's clock; ``None`` means: not yet."""

    name: str
    state: StepState
    after: str
    """The step before; empty for the first one, and for the branch of all failures."""
    on: StepCondition
    workers: tuple[str, ...]
    """The classes of its jobs, as their names on the wire."""
    bid: str
    """The id of its batch: ``Batch(bid)`` once the step has begun to start."""
    jobs: int | None
    """Its jobs; ``None`` until a function has computed them."""
    pending: int
    """Jobs that have not succeeded."""
    failures: int
    """Jobs that failed in their last run: they will be retried, or died."""
    dead: int
    removed: int
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class WorkflowStatus:
    """The known facts of a workflow. Times are as those of a step."""

    id: str
    name: str
    description: str
    shard: str
    state: WorkflowState
    parent: str
    """The id of the batch around it; empty for none."""
    steps: tuple[StepStatus, ...]
    """In the order of their declaration."""
    created_at: float
    ended_at: float | None
    cancelled_at: float | None
    invalidated_at: float | None
    expires_at: float | None

    @property
    def ended(self) -> bool:
        """Whether it has succeeded, failed or was cancelled."""
        return self.ended_at is not None

    def step(self, name: str) -> StepStatus:
        """Return the status of a step. Raises KeyError."""
        for one in self.steps:
            if one.name == name:
                return one
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class StepResult:
    """An argument that is known when a step starts: what the jobs of an earlier step have returned."""

    step: str
    all_jobs: bool

    def __repr__(self) -> str:
        return f"{'results_of' if self.all_jobs else 'result_of'}({self.step!r})"


@dataclass(frozen=True, slots=True)
class NewStepJobs:
    """Jobs of one class in a step that is not stored yet."""

    declaration: Declaration
    options: Mapping[str, Any]
    """Those of ``Worker.set(...)``, normalised."""
    args: Sequence[list[Any]]
    """Of stored arguments: those of each job, bound to positions."""
    function: str = ""
    function_args: Sequence[Any] = ()
    function_kwargs: Any = None
    received: Sequence[Sequence[Any]] = ()
    """Of arguments with results of earlier steps: those of each job."""

    def results(self) -> list[StepResult]:
        """Return the results that stand in the arguments."""
        return [value for row in self.received for value in row if isinstance(value, StepResult)]


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step that is not stored yet."""

    name: str
    on: StepCondition
    after: str
    jobs: Sequence[NewStepJobs]
    keeps_results: bool = False


@dataclass(frozen=True, slots=True)
class NewWorkflow:
    """A workflow that is not stored yet."""

    name: str
    description: str
    queue: str | None
    expires_in_s: int
    steps: Sequence[NewStep]


class WorkflowPort(Protocol):
    """The workflows of the client."""

    def start(self, workflow: NewWorkflow) -> str:
        """Store a workflow, and enqueue the job that starts its first step; return its id."""
        ...

    def advance(self, workflow_id: str, step: str, event: WorkflowEvent) -> None:
        """Note the event of a step, and start the next one. May be called any number of times for an event."""
        ...

    def change(self, workflow_id: str, action: WorkflowCommand) -> None:
        """Invalidate, cancel or delete a workflow."""
        ...

    def status(self, workflow_id: str) -> WorkflowStatus:
        """Return the status of a workflow."""
        ...


WORKFLOWS: Late[type[WorkflowPort]] = Late("framework.features.workflows.workflows:Workflows")
"""The workflows of the client, which serves them (``ClientPort.service``)."""
