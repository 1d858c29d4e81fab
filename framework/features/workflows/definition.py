"""Define a workflow as it is stored: its steps, the names of their batches, and the parts of the stored arguments."""

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from framework.errors import PayloadError
from framework.types import Json
from framework.wire.job import BID_PREFIX
from framework.wire.json import dumps, dumps_exact, loads

WORKFLOW_STEP = "Framework::WorkflowStep"
"""Class of the jobs that start the steps."""

StepCondition: TypeAlias = Literal["start", "success", "failure"]
"""When a step starts: with the workflow, or after the success or the failure of another step."""

WorkflowEvent: TypeAlias = Literal["start", "success", "finished"]
"""The cause of a job that starts steps: the start of the workflow, or an event of a step's batch."""

EVENTS_OF_STEPS: tuple[WorkflowEvent, ...] = ("start", "success", "finished")

WorkflowCommand: TypeAlias = Literal["invalidate", "cancel", "delete"]
"""The actions of a caller on a workflow."""

EMPTY_PART = b"[]"
"""The only part of a step without jobs."""

_MOST_JOBS = 1_000
_MOST_BYTES = 1_000_000
"""Of a part, which is written at once."""

_STEP_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")

WORKFLOW_PREFIX = "wf-"


def new_workflow_id() -> str:
    return WORKFLOW_PREFIX + secrets.token_urlsafe(9)


def is_workflow_id(value: object) -> bool:
    """Return whether a value may be the id of a workflow."""
    return isinstance(value, str) and re.fullmatch(rf"{WORKFLOW_PREFIX}[A-Za-z0-9_-]+", value) is not None


def is_step_name(value: object) -> bool:
    return isinstance(value, str) and _STEP_NAME.fullmatch(value) is not None


def step_bid(workflow: str, step: str) -> str:
    """Return the id of the batch of a step. It is the same at each attempt to write it."""
    return f"{BID_PREFIX}{workflow}.{step}"


def step_of(bid: str) -> tuple[str, str] | None:
    """Return the workflow and the step of a batch, ``None`` for a batch of no workflow."""
    workflow, dot, step = bid.removeprefix(BID_PREFIX).partition(".")
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


def split_jobs(groups: Iterable[tuple[int, Iterable[list[Json]]]]) -> Iterator[bytes]:
    """Yield the parts of jobs that are given as (index of their class, arguments of each): JSON of a list of the same form.

    Raises:
        PayloadError: arguments are nested too deeply.
    """
    parts: list[bytes] = []
    lines: list[bytes] = []
    count = size = 0
    empty = True
    for index, jobs in groups:
        for args in jobs:
            line = dumps_exact(args, outer_levels=4)
            lines.append(line)
            count, size = count + 1, size + len(line)
            if count >= _MOST_JOBS or size >= _MOST_BYTES:
                parts.append(_group(index, lines))
                yield _part(parts)
                parts, lines, count, size, empty = [], [], 0, 0, False
        if lines:
            parts.append(_group(index, lines))
            lines = []
    if parts or empty:
        yield _part(parts)


def _group(index: int, lines: list[bytes]) -> bytes:
    return b"[%d,[%s]]" % (index, b",".join(lines))


def _part(groups: list[bytes]) -> bytes:
    return b"[%s]" % b",".join(groups) if groups else EMPTY_PART
