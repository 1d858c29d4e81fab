"""Define a workflow as it is stored: its steps, and the names of their batches."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from framework.errors import PayloadError
from framework.types import Json
from framework.wire.json import dumps, loads

WORKFLOW_STEP = "Framework::WorkflowStep"
"""Class of the jobs that start the steps."""

StepCondition: TypeAlias = Literal["start", "success", "failure"]
"""When a step starts: with the workflow, or after the success or the failure of another step."""

WorkflowEvent: TypeAlias = Literal["start", "success", "finished"]
"""The cause of a job that starts steps: the start of the workflow, or an event of a step's batch."""

EVENTS_OF_STEPS: tuple[WorkflowEvent, ...] = ("start", "success", "finished")

WorkflowCommand: TypeAlias = Literal["invalidate", "cancel", "delete"]
"""The actions of a caller on a workflow."""

WorkflowAction: TypeAlias = Literal["create", "plan"] | WorkflowCommand
"""The actions of ``workflow_change.lua``."""

_STEP_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")

_PREFIX = "wf-"
_BATCH_PREFIX = "aw-"


def new_workflow_id() -> str:
    """Return the id of a new workflow."""
    return _PREFIX + secrets.token_urlsafe(9)


def is_workflow_id(value: object) -> bool:
    """Return whether a value may be the id of a workflow."""
    return isinstance(value, str) and re.fullmatch(rf"{_PREFIX}[A-Za-z0-9_-]+", value) is not None


def is_step_name(value: object) -> bool:
    """Return whether a value may be the name of a step."""
    return isinstance(value, str) and _STEP_NAME.fullmatch(value) is not None


def step_bid(workflow: str, step: str) -> str:
    """Return the id of the batch of a step. It is the same at each attempt to write it."""
    return f"{_BATCH_PREFIX}{workflow}.{step}"


def step_of(bid: str) -> tuple[str, str] | None:
    """Return the workflow and the step of a batch, ``None`` for a batch of no workflow."""
    workflow, dot, step = bid.removeprefix(_BATCH_PREFIX).partition(".")
    return (workflow, step) if dot and is_workflow_id(workflow) else None


@dataclass(frozen=True, slots=True)
class StepJobs:
    """The jobs of one class in a step."""

    worker: str
    """Its name on the wire."""
    options: Mapping[str, Json]
    """Those of ``Worker.set(...)``."""
    function: str = ""
    """``module:name`` of the function that computes the arguments when the step starts; empty for stored arguments."""
    args: Sequence[Json] = ()
    kwargs: Mapping[str, Json] | None = None
    received: Sequence[Sequence[Sequence[Json]]] = ()
    """Arguments with results of earlier steps, each as ``[VALUE]``, or as ``[STEP, "one"]``, ``[STEP, "all"]``."""


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """A step: jobs that run in parallel, as one batch."""

    name: str
    on: StepCondition
    after: str
    """The step before; empty for the first one, and for the branch of all failures."""
    jobs: tuple[StepJobs, ...]
    keeps_results: bool = False
    """Whether a later step receives the results of its jobs."""

    @property
    def is_computed(self) -> bool:
        """Whether arguments are known only when the step starts: a function computes them, or they are results."""
        return any(one.function or one.received for one in self.jobs)


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """The steps of a workflow, without the stored arguments."""

    steps: tuple[WorkflowStep, ...]

    def encode(self) -> str:
        """Return the definition as it is stored."""
        return dumps([asdict(one) for one in self.steps]).decode()

    @classmethod
    def decode(cls, data: str) -> "WorkflowDefinition":
        """Return a stored definition.

        Raises:
            PayloadError: it is none, or names of steps are missing or occur twice.
        """
        stored: Any = loads(data.encode())
        try:
            steps = tuple(_stored_step(**one) for one in stored)
            names: set[Any] = {step.name for step in steps}
        except (TypeError, KeyError) as error:
            raise PayloadError(f"it is no definition of a workflow: {error!r}") from error
        if len(names) != len(steps) or not all(isinstance(name, str) for name in names):
            raise PayloadError("a definition of a workflow needs one text as the name of each step")
        return cls(steps)

    def step(self, name: str) -> WorkflowStep:
        """Return a step by its name."""
        return next(one for one in self.steps if one.name == name)

    def next_step(self, after: str, on: StepCondition) -> str:
        """Return the step that follows, empty for none. A failed step without a branch has that of all failures."""
        found = next((one.name for one in self.steps if one.after == after and one.on == on), "")
        if found or on != "failure" or after not in self.main_steps():
            return found
        return next((one.name for one in self.steps if one.on == "failure" and not one.after), "")

    def main_steps(self) -> list[str]:
        """Return the steps from the first one on that follow each other's success."""
        found = [one.name for one in self.steps if one.on == "start"]
        # A definition that was changed in Redis may lead back to a step.
        while following := next(
            (
                one.name
                for one in self.steps
                if found and one.after == found[-1] and one.on == "success" and one.name not in found
            ),
            "",
        ):
            found.append(following)
        return found


def _stored_step(jobs: Sequence[Mapping[str, Any]], **facts: Any) -> WorkflowStep:
    return WorkflowStep(jobs=tuple(StepJobs(**one) for one in jobs), **facts)


@dataclass(frozen=True, slots=True)
class StepPart:
    """Jobs of a step that are written by one call of ``batch_push.lua``, once."""

    workflow: str
    """The key of the workflow."""
    step: str
    number: int
    """From 1 on. A part that was written is not written again."""
    last: bool
