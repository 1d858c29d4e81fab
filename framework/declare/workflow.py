"""Define ``Workflow``: steps that follow each other, each a batch of jobs that run in parallel."""

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeAlias, get_origin

from framework.async_twin import async_twin
from framework.declare import port, registry
from framework.declare.batch import EXPIRES_IN, check_expiry, check_text
from framework.declare.declaration import Declaration
from framework.declare.request import P, bind_all
from framework.declare.setter import CoreSetter, setter_of
from framework.declare.validators import InvalidValue
from framework.declare.validators import queue as check_queue
from framework.declare.workflow_functions import path_of
from framework.declare.workflow_port import WORKFLOWS, NewStep, NewStepJobs, NewWorkflow, StepResult, WorkflowStatus
from framework.errors import ArgumentsError, WorkflowError
from framework.messages import did_you_mean
from framework.typeguards import is_class, short_repr
from framework.wire.workflow_fields import StepCondition, is_step_name, is_workflow_id

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
            ShardUnavailableError: Redis does not answer or refuses the write.
        """
        if not self._steps:
            raise self._error("it has no step; begin with step(name, Worker, args)")
        made = [(one, [self._checked_jobs(one, *jobs) for jobs in one.jobs]) for one in self._steps]
        kept = {part.step for _, jobs in made for one in jobs for part in one.results()}
        self._check_kept(made, kept)
        steps = [NewStep(one.name, one.on, one.after, jobs, one.name in kept) for one, jobs in made]
        new = NewWorkflow(self._name, self._description, self._queue, self._expires_in_s, steps)
        return WorkflowRun(port.current().service(WORKFLOWS).start(new))

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
        """Check the steps whose results are kept."""
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
        if is_class(worker) and hasattr(worker, "_aw_setter"):
            worker = setter_of(worker)
        if not isinstance(worker, CoreSetter):
            raise self._error(
                f"step {step.name!r}: {short_repr(worker)} is no worker class, Worker.set(...) or name of a class"
            )
        setter: CoreSetter[Any] = worker
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
        return port.current().service(WORKFLOWS).status(self.id)

    async def astatus(self) -> WorkflowStatus:
        """Return ``status`` without blocking the event loop, with its errors."""
        return await asyncio.to_thread(lambda: self.status)

    def invalidate(self) -> None:
        """Tell the jobs that ask (``self.batch.valid``), in this step and in later ones, that they need not run.

        Raises as ``status``.
        """
        port.current().service(WORKFLOWS).change(self.id, "invalidate")

    def cancel(self) -> None:
        """Cancel the jobs of the step that runs (``Batch.cancel``), and write no other step or branch. Raises as ``status``."""
        port.current().service(WORKFLOWS).change(self.id, "cancel")

    def delete(self) -> None:
        """Forget the workflow and the batch of the step that runs: its jobs stay, and no step starts.

        Raises as ``status``.
        """
        port.current().service(WORKFLOWS).change(self.id, "delete")

    ainvalidate = async_twin(invalidate)
    acancel = async_twin(cancel)
    adelete = async_twin(delete)
