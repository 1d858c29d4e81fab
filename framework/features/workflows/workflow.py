"""Define ``Workflow``: steps that follow each other, each a batch of jobs that run in parallel.

Functions that compute arguments are kept by their names: a stored workflow never imports anything.
"""

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar, cast, get_origin

from framework.async_twin import async_twin
from framework.declare import port, registry
from framework.declare.declaration import Declaration
from framework.declare.request import P, bind_all
from framework.declare.setter import CoreSetter
from framework.declare.validators import InvalidValue
from framework.declare.validators import queue as check_queue
from framework.errors import ArgumentsError, WorkflowError
from framework.feature import Late
from framework.features.batches.batch import EXPIRES_IN, check_expiry, check_text
from framework.features.batches.calls import as_setter
from framework.features.workflows.definition import (
    StepCondition,
    is_step_name,
    is_workflow_id,
)
from framework.text import did_you_mean
from framework.typeguards import short_repr

if TYPE_CHECKING:
    from framework.features.workflows.push import Workflows

_WORKFLOWS: "Late[type[Workflows]]" = Late("framework.features.workflows.push:Workflows")

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
        return [value for row in self.received for value in row if isinstance(value, StepResult)]


@dataclass(frozen=True, slots=True)
class NewStep:
    name: str
    on: StepCondition
    after: str
    jobs: Sequence[NewStepJobs]
    keeps_results: bool = False


@dataclass(frozen=True, slots=True)
class NewWorkflow:
    name: str
    description: str
    queue: str | None
    expires_in_s: int
    steps: Sequence[NewStep]


F = TypeVar("F", bound=Callable[..., Iterable[Sequence[Any]]])

# By ``module:name``. Written when modules are imported (decision 150).
_functions: dict[str, Callable[..., Iterable[Sequence[Any]]]] = {}


def computes_arguments(function: F, /) -> F:
    """Let workflows call this function of a module: it returns or yields the arguments of each job of a step (``computed``).

    Raises:
        WorkflowError: it is a method, a local function, or async.
    """
    name, module = getattr(function, "__qualname__", ""), getattr(function, "__module__", "")
    if not inspect.isfunction(function) or "." in name or "<" in name:
        raise WorkflowError(
            "",
            f"@computes_arguments on {short_repr(function)}: decorate a function of a module, as it is called by its name",
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise WorkflowError(
            "", f"@computes_arguments on {module}.{name}: it is async; return or yield the arguments in a def"
        )
    _functions[f"{module}:{name}"] = function
    return cast("F", function)


def path_of(function: object) -> str:
    """Return the name of a decorated function. Raises WorkflowError for any other object."""
    path = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    if _functions.get(path) is not function:
        raise WorkflowError("", f"computed({short_repr(function)}): decorate the function with @computes_arguments")
    if path.startswith("__main__:"):
        raise WorkflowError(
            "", f"computed({short_repr(function)}): move it to a module: worker processes do not have this program"
        )
    return path


def function_of(workflow: str, path: str) -> Callable[..., Iterable[Sequence[Any]]]:
    """Return a function by its name. Raises WorkflowError."""
    found = _functions.get(path)
    if found is None:
        raise WorkflowError(
            workflow,
            f"no function {path} is decorated with @computes_arguments in this process{did_you_mean(path, _functions)}. Deploy it "
            "again, or cancel the workflow",
        )
    return found


def workflows() -> "Workflows":
    return port.current().service(_WORKFLOWS)


StepWorker: TypeAlias = type[Any] | CoreSetter[...] | str
"""A worker class, ``Worker.set(...)``, or the name of a class on the wire."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Arguments that a function computes when their step starts; see ``computed``."""

    path: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def result_of(step: str) -> Any:
    """Return an argument that stands for the result of an earlier step, which has one job: ``[(result_of("price"), 9)]``."""
    return StepResult(step, all_jobs=False)


def results_of(step: str) -> Any:
    """Return an argument that stands for the list of the results of an earlier step: ``[(results_of("parts"), 9)]``.

    The list has them in the order of the step's arguments. A job that was discarded has none.
    """
    return StepResult(step, all_jobs=True)


StepArguments: TypeAlias = Iterable[Sequence[Any]] | Computed
"""The arguments of each job of a step, as those of ``perform_bulk``."""


def computed(function: Callable[P, Iterable[Sequence[Any]]], /, *args: P.args, **kwargs: P.kwargs) -> Computed:
    """Return the arguments of a step's jobs as a function computes them when the step starts: ``computed(rows_of, import_id)``.

    The function is decorated with ``@computes_arguments``. It is called in a worker process, in the job that starts the step. It is
    stored by its name, with its own arguments, which must be JSON. If the process dies it may be called again, but only the result
    of one call counts.

    Raises:
        WorkflowError: the function is not decorated, or the arguments do not fit it.
    """
    path = path_of(function)
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise WorkflowError("", f"computed({path}): {error}") from None
    return Computed(path, args, kwargs)


@dataclass(slots=True)
class _Step:
    name: str
    on: StepCondition
    after: str
    jobs: list[tuple[StepWorker, StepArguments]] = field(default_factory=list[tuple[StepWorker, StepArguments]])


class Workflow:
    """Steps that follow each other. Each step is a batch of jobs that run in parallel.

    ``queue`` is the queue of the jobs that start the steps; without it, that of the first class of the first step. ``expires_in``
    is how long a workflow is kept after its last change.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        queue: str | None = None,
        expires_in: timedelta | float = EXPIRES_IN,
    ) -> None:
        self._name = check_text("name", name)
        self._description = check_text("description", description)
        try:
            self._queue = None if queue is None else str(check_queue(queue))
        except InvalidValue as error:
            raise ValueError(f"queue={short_repr(queue)}. Allowed: {error}") from None
        self._expires_in_s = check_expiry(expires_in)
        self._steps: list[_Step] = []

    def __repr__(self) -> str:
        return f"Workflow({self._name!r}: {', '.join(one.name for one in self._steps)})"

    def step(self, name: str, worker: StepWorker, args: StepArguments = ((),)) -> Self:
        """Begin with this step: a job of ``worker`` for each tuple of arguments; without ``args`` one job without arguments.

        Raises:
            WorkflowError: the workflow has a first step, or the name is invalid or taken.
        """
        if self._steps:
            raise self._error(
                f"step({name!r}): it begins with {self._steps[0].name!r}; add further steps by then() or on_failure()"
            )
        return self._add(name, "start", "", worker, args)

    def then(self, name: str, worker: StepWorker, args: StepArguments = ((),)) -> Self:
        """Start this step when all jobs of the step added before have succeeded. Otherwise as ``step``."""
        return self._add(name, "success", self._last("then", name).name, worker, args)

    def also(self, worker: StepWorker, args: StepArguments = ((),)) -> Self:
        """Add jobs of another class to the step added before: they run in parallel with its jobs."""
        self._last("also", "").jobs.append((worker, args))
        return self

    def on_failure(self, name: str, worker: StepWorker, args: StepArguments = ((),), *, of: str | None = None) -> Self:
        """Start this step when a step has failed: all of its jobs have ended, and one has died or was removed.

        ``of`` is the name of the step that fails; without it, each step of the main line that has no branch of its own. ``then``
        adds the next step of the branch. A workflow with a failed step fails, also if its branch succeeds.

        Raises:
            WorkflowError: as ``step``, ``of`` names no step, or the step has such a branch.
        """
        self._last("on_failure", name)
        if of is not None and of not in (names := [one.name for one in self._steps]):
            raise self._error(f"on_failure({name!r}, of={of!r}): there is no step {of!r}{did_you_mean(of, names)}")
        if any(one.on == "failure" and one.after == (of or "") for one in self._steps):
            of_what = f"the failure of {of!r}" if of else "a failure"
            raise self._error(f"on_failure({name!r}): {of_what} has a branch; add to it by then()")
        return self._add(name, "failure", of or "", worker, args)

    def start(self) -> "WorkflowRun":
        """Store the workflow, and enqueue the job that starts its first step. May be called again, for another run.

        The definition is stored: a later change of the code does not change a workflow that was started. Inside of a block
        ``with batch.jobs():`` it is nested in the batch, which waits for all of its steps.

        Raises:
            WorkflowError: it has no step, a name is that of no loaded class, or the classes are of several shards.
            ArgumentsError: the arguments of a job do not fit its class, or are not JSON.
            BacklogFullError: a class of a step is held back, because it fills the memory of the shard.
            ShardUnavailableError: Redis does not answer or refuses the write.
        """
        if not self._steps:
            raise self._error("it has no step; begin with step(name, Worker, args)")
        made = [(one, [self._checked_jobs(one, *jobs) for jobs in one.jobs]) for one in self._steps]
        kept = {part.step for _, jobs in made for one in jobs for part in one.results()}
        self._check_kept(made, kept)
        steps = [NewStep(one.name, one.on, one.after, jobs, one.name in kept) for one, jobs in made]
        new = NewWorkflow(self._name, self._description, self._queue, self._expires_in_s, steps)
        return WorkflowRun(workflows().start(new))

    astart = async_twin(start)

    def _add(self, name: str, on: StepCondition, after: str, worker: StepWorker, args: StepArguments) -> Self:
        if not is_step_name(name):
            raise self._error(f"the step name {short_repr(name)} is invalid: give 1 to 50 letters, digits, _ and -")
        if any(one.name == name for one in self._steps):
            raise self._error(f"it has a step {name!r}; give each step a name of its own")
        self._steps.append(_Step(name, on, after, [(worker, args)]))
        return self

    def _last(self, method: str, name: str) -> _Step:
        if not self._steps:
            raise self._error(f"{method}({name!r}): it has no step; begin with step(name, Worker, args)")
        return self._steps[-1]

    def _checked_jobs(self, step: _Step, worker: StepWorker, args: StepArguments) -> NewStepJobs:
        """Return the jobs of a step. The error of an argument names the step."""
        try:
            return self._jobs(step, worker, args)
        except ArgumentsError as error:
            reason = f"(step {step.name!r} of {self._name!r}) {error.reason}"
            raise ArgumentsError(error.worker, reason, argument=error.argument) from None

    def _jobs(self, step: _Step, worker: StepWorker, args: StepArguments) -> NewStepJobs:
        setter = self._setter(step, worker)
        declaration = setter.declaration
        if isinstance(args, Computed):
            return NewStepJobs(declaration, setter.options, (), args.path, args.args, args.kwargs)
        if declaration.encrypt:
            raise self._error(
                f"step {step.name!r}: the arguments of {declaration.wire_name} are encrypted, and would be stored in plain text. "
                "Compute them when the step starts: computed(function, ...)"
            )
        rows = list(args)
        if any(isinstance(value, StepResult) for row in rows if isinstance(row, list | tuple) for value in row):
            received = [self._received(step, declaration, row) for row in rows]
            return NewStepJobs(declaration, setter.options, (), received=received)
        return NewStepJobs(declaration, setter.options, bind_all(declaration.signature, rows))

    def _received(self, step: _Step, declaration: Declaration, row: Sequence[Any]) -> Sequence[Any]:
        """Check one job's arguments, of which some are results of earlier steps. Those are checked when the step starts."""
        signature = declaration.signature
        signature.check_count(row)
        earlier = [one.name for one in self._steps[: self._steps.index(step)]]
        for index, value in enumerate(row):
            if not isinstance(value, StepResult):
                continue
            if value.step not in earlier:
                raise self._error(
                    f"step {step.name!r}: {value!r} names no earlier step{did_you_mean(value.step, earlier)}"
                )
            kind = signature.annotations[min(index, len(signature.annotations) - 1)]
            if value.all_jobs and (get_origin(kind) or kind) not in (list, Sequence, Any):
                raise self._error(
                    f"step {step.name!r}: {value!r} is a list, and perform of {declaration.wire_name} takes "
                    f"{getattr(kind, '__name__', kind)}: annotate the parameter with list[...]"
                )
        return row

    def _check_kept(self, steps: Sequence[tuple[_Step, Sequence[NewStepJobs]]], kept: Collection[str]) -> None:
        for step, jobs in steps:
            secret = next((one.declaration.wire_name for one in jobs if one.declaration.encrypt), None)
            if step.name in kept and secret is not None:
                raise self._error(
                    f"step {step.name!r}: {secret} declares encrypt, and results are not encrypted: let the job store its own"
                )

    def _setter(self, step: _Step, worker: StepWorker) -> CoreSetter[Any]:
        if isinstance(worker, str):
            found = registry.find(worker)
            if found is None:
                hint = did_you_mean(worker, registry.names())
                raise self._error(
                    f"step {step.name!r}: no class {worker!r} is loaded{hint}. Import its module, or give the class"
                )
            worker = found
        setter = as_setter(worker)
        if setter is None:
            raise self._error(
                f"step {step.name!r}: {short_repr(worker)} is no worker class, Worker.set(...) or name of a class"
            )
        if setter.options.get("sync"):
            raise self._error(f"step {step.name!r}: set(sync=True) runs jobs here; leave out sync")
        return setter

    def _error(self, reason: str) -> WorkflowError:
        return WorkflowError(self._name, reason)


class WorkflowRun:
    """A workflow that was started: ``WorkflowRun(id)``.

    Raises:
        ValueError: this is no id of a workflow.
    """

    def __init__(self, workflow_id: str) -> None:
        if not is_workflow_id(workflow_id):
            raise ValueError(f"WorkflowRun({short_repr(workflow_id)}): give run.id, such as 'wf-1gE2oQJ4xZ0a'")
        self.id = workflow_id

    def __repr__(self) -> str:
        return f"WorkflowRun({self.id!r})"

    @property
    def status(self) -> WorkflowStatus:
        """The status of the workflow and of its steps, read now.

        Raises:
            UnknownWorkflowError: it was deleted, or has expired.
            ShardUnavailableError: Redis does not answer.
        """
        return workflows().status(self.id)

    async def astatus(self) -> WorkflowStatus:
        """Return ``status`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.status)

    def invalidate(self) -> None:
        """Tell the jobs that ask (``self.batch.valid``), in this step and in later ones, that they need not run.

        Raises as ``status``.
        """
        workflows().change(self.id, "invalidate")

    def cancel(self) -> None:
        """Cancel the jobs of the step that runs (``Batch.cancel``), and write no other step or branch. Raises as ``status``."""
        workflows().change(self.id, "cancel")

    def delete(self) -> None:
        """Forget the workflow and the batch of the step that runs: its jobs stay, and no step starts.

        Raises as ``status``.
        """
        workflows().change(self.id, "delete")

    ainvalidate = async_twin(invalidate)
    acancel = async_twin(cancel)
    adelete = async_twin(delete)
