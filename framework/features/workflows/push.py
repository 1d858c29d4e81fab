"""Start workflows and their steps, on every shard."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, cast

from framework.declare import registry
from framework.declare.request import BulkRequest, PushRequest, bind_all
from framework.declare.setter import CoreSetter
from framework.declare.strict_json import NotJsonError, check_strict_json
from framework.errors import BatchError, ResultError, UnknownWorkflowError, WorkflowError
from framework.feature import Late
from framework.features.batches.calls import BatchFacts, StepPart, current_block
from framework.features.batches.payload import kept_values
from framework.features.batches.push import BatchBlock
from framework.features.batches.store import Batches, Homes
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.definition import (
    EVENTS_OF_STEPS,
    StepJobs,
    WorkflowCommand,
    WorkflowDefinition,
    WorkflowEvent,
    WorkflowStep,
    new_workflow_id,
    split_jobs,
    step_bid,
)
from framework.features.workflows.step_worker import WorkflowStepWorker
from framework.features.workflows.store import (
    add_parts,
    advance_workflow,
    change_workflow,
    find_workflow,
    read_fields,
    step_part,
    write_workflow,
)
from framework.features.workflows.workflow import (
    NewStep,
    NewStepJobs,
    NewWorkflow,
    StepResult,
    WorkflowStatus,
    function_of,
)
from framework.push.client import Client
from framework.shard.shard import Shard
from framework.telemetry import logs
from framework.types import Json
from framework.wire.job import generate_jid
from framework.wire.json import dumps, loads
from framework.wire.protected import StatePlace

_SIGNATURE = "signature"
_SIGNED_FIELDS = ("name", "description", "queue", "parent", "definition", "steps")

_PLACES_OF_PART = 1_000_000
"""Places of results per part of a step: more than a part has jobs."""

_NO_FLUSH = 1 << 60
"""A part of a step is one write, whatever its size."""


_BATCHES: Late[type[Batches]] = Late("framework.features.batches.store:Batches")


class Workflows:
    """The workflows of all shards of a client. Safe to share between threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._signatures = client.state_signatures
        self._batches = client.service(_BATCHES)
        self._homes = Homes(client.shards, UnknownWorkflowError)

    # At a crash: a death before the last line leaves a definition that no job refers to. It expires, and the caller has no id.
    def start(self, workflow: NewWorkflow) -> str:
        home, block = self._home_of(workflow), current_block.get()
        queue = workflow.queue or self._queue_of(workflow.steps[0].jobs[0])
        workflow_id, definition = new_workflow_id(), self._definition(workflow)
        fields = {
            "name": workflow.name,
            "description": workflow.description,
            "queue": queue,
            "parent": "" if block is None else block.facts.bid,
            "definition": definition.encode(),
            "steps": " ".join(one.name for one in workflow.steps),
        }
        if self._signatures.signs:
            fields[_SIGNATURE] = self._signatures.sign(*_signed_facts(workflow_id, fields))
        for new, step in zip(workflow.steps, definition.steps, strict=True):
            args = [(index, one.args) for index, one in enumerate(new.jobs) if not (one.function or one.received)]
            place = workflow_keys.step_jobs(workflow_id, new.name)
            parts = add_parts(home, place, self._sealed(place, split_jobs(args)) if args else ())
            if not step.is_computed:
                fields |= {f"{new.name}:parts": str(parts), f"{new.name}:jobs": str(sum(len(one) for _, one in args))}
        facts = dumps({"ttl_s": workflow.expires_in_s, "fields": fields})
        write_workflow(home, workflow_id, "create", facts)
        if self._advancer(home.name, queue).perform_async(workflow_id, "", "start") is None:
            raise WorkflowError(
                workflow.name, "a client middleware dropped the job that starts its first step: let it pass this job"
            )
        return workflow_id

    def advance(self, workflow_id: str, step: str, event: WorkflowEvent) -> None:
        log = logs.logger(workflow=workflow_id, workflow_step=step or None)
        try:
            home, fields = self._homes.ask(workflow_id, lambda one: _found(one, read_fields(one, workflow_id)))
        except UnknownWorkflowError:
            log.warning("the workflow was deleted or has expired: no step starts", event_name="workflow.unknown")
            return
        self._signatures.check(*_signed_facts(workflow_id, fields), fields.get(_SIGNATURE, ""))
        definition = WorkflowDefinition.decode(fields["definition"])
        if event not in EVENTS_OF_STEPS or (event != "start" and step not in fields["steps"].split()):
            raise WorkflowError(workflow_id, f"it has no step {step!r}, or there is no event {event!r}")
        first = next(one.name for one in definition.steps if one.on == "start")
        after_success = first if event == "start" else definition.next_step(step, "success")
        answer, following = advance_workflow(
            home,
            workflow_id,
            step,
            event,
            after_success,
            "" if event == "start" else definition.next_step(step, "failure"),
        )
        if answer == "start":
            self._start_step(home, workflow_id, fields, definition.step(following))
        elif answer == "ended":
            log.info("the workflow has ended", event_name="workflow.ended", workflow_state=following)

    def change(self, workflow_id: str, action: WorkflowCommand) -> None:
        self._homes.ask(workflow_id, lambda home: change_workflow(home, workflow_id, action) or None)
        if action == "delete":
            self._homes.forget(workflow_id)

    def status(self, workflow_id: str) -> WorkflowStatus:
        return self._homes.ask(workflow_id, lambda home: find_workflow(home, workflow_id))

    def _start_step(self, home: Shard, workflow_id: str, fields: Mapping[str, str], step: WorkflowStep) -> None:
        name = step.name
        if step.is_computed:
            self._compute(home, workflow_id, step)
        now = read_fields(home, workflow_id)
        parts, written = int((now or {}).get(f"{name}:parts", 0)), int((now or {}).get(f"{name}:written", 0))
        jobs = 0
        try:
            for number in range(written + 1, parts + 1):
                part = StepPart(workflow_keys.workflow(workflow_id), name, number, last=number == parts)
                jobs += self._write_part(home, workflow_id, fields, step, part)
        except BatchError:
            # Cancelled or deleted meanwhile.
            now = read_fields(home, workflow_id)
            if now is None or "cancelled_at" in now:
                return
            raise
        logs.logger(workflow=workflow_id, workflow_step=name).info(
            "the step has started", event_name="workflow.step_started", jobs=jobs
        )

    def _write_part(
        self, home: Shard, workflow_id: str, fields: Mapping[str, str], step: WorkflowStep, part: StepPart
    ) -> int:
        data = step_part(home, workflow_keys.step_jobs(workflow_id, step.name), part.number)
        if data is None:
            now = read_fields(home, workflow_id)
            if now is not None and now.get(f"{step.name}:state") == "starting" and "cancelled_at" not in now:
                raise WorkflowError(
                    workflow_id,
                    f"the stored jobs of the step {step.name!r} are lost: cancel the workflow, and start another one",
                )
            return 0
        data = self._signatures.open(
            _part_place(workflow_keys.step_jobs(workflow_id, step.name), part.number, last=part.last), data
        )
        facts = BatchFacts(
            step_bid(workflow_id, step.name),
            f"{fields['name']}: {step.name}",
            fields["queue"],
            int(fields["ttl_s"]),
            home.name,
            exists=part.number > 1,
            left_open=part.number > 1,
            keeps_results=step.keeps_results,
            # The parts may be written by several processes.
            next_place=part.number * _PLACES_OF_PART,
            part=part,
        )
        if fields.get("parent"):
            facts.parent = BatchFacts(fields["parent"])
        if part.number == 1:
            self._add_callbacks(facts, workflow_id, step)
        block, jobs = BatchBlock(self._client, facts, home.name, _NO_FLUSH), 0
        groups: list[tuple[int, list[list[Json]]]] = loads(data)
        for index, args in groups:
            setter = _setter_of(workflow_id, step.jobs[index])
            block.push_bulk(BulkRequest(setter.declaration, args, None, setter.options))
            jobs += len(args)
        block.finish_part()
        return jobs

    def _add_callbacks(self, facts: BatchFacts, workflow_id: str, step: WorkflowStep) -> None:
        setter = self._advancer(facts.shard or "", facts.callback_queue)
        for event in ("success", "finished"):
            built = self._batches.build_callback(facts, event, setter.request(workflow_id, step.name, event))
            if built is None:
                raise WorkflowError(
                    workflow_id,
                    f"a client middleware dropped the job that follows the step {step.name!r}: let it pass this job",
                )
            facts.callbacks.setdefault(event, []).append(built)

    # At a crash: the result of each call is a list of its own, which expires. The first that is complete is moved to its place.
    def _compute(self, home: Shard, workflow_id: str, step: WorkflowStep) -> None:
        """Call the functions of a step, and store their result, unless it is stored."""
        now = read_fields(home, workflow_id)
        if now is None or f"{step.name}:planned" in now:
            return
        place = workflow_keys.step_jobs(workflow_id, step.name)
        stored = list(self._stored_groups(home, place))
        counts = [sum(len(args) for _, args in stored)]

        def computed(jobs: StepJobs) -> Iterator[list[Json]]:
            signature = _setter_of(workflow_id, jobs).declaration.signature
            for args in function_of(workflow_id, jobs.function)(*jobs.args, **(jobs.kwargs or {})):
                counts[0] += 1
                yield from bind_all(signature, (args,), None, counts[0] - 1)

        def received(jobs: StepJobs) -> list[list[Json]]:
            signature = _setter_of(workflow_id, jobs).declaration.signature
            rows = [[self._received(home, workflow_id, value) for value in row] for row in jobs.received]
            counts[0] += len(rows)
            return bind_all(signature, rows)

        groups = (
            (index, computed(jobs) if jobs.function else received(jobs))
            for index, jobs in enumerate(step.jobs)
            if jobs.function or jobs.received
        )
        token = f"{place}:{generate_jid()}"
        parts = add_parts(home, token, self._sealed(place, split_jobs(chain(stored, groups))))
        write_workflow(home, workflow_id, "plan", step.name.encode(), (token, place), (parts, counts[0]))

    # At a crash: the ends of jobs have stored the results; the arguments made of them are stored once, as computed ones.
    def _received(self, home: Shard, workflow_id: str, argument: Sequence[Json]) -> Json:
        """Return a stored argument, or the result or the results of the step that it names. Raises WorkflowError."""
        if len(argument) == 1:
            return argument[0]
        step, kind = str(argument[0]), argument[1]
        try:
            with home.reading():
                values: list[Json] = kept_values(self._batches.results_on(home, step_bid(workflow_id, step)))
        except (BatchError, ResultError) as error:
            raise WorkflowError(workflow_id, f"the results of the step {step!r} cannot be received: {error}") from error
        if kind == "all":
            return values
        if len(values) != 1:
            raise WorkflowError(
                workflow_id,
                f"the step {step!r} has {len(values)} results, and result_of takes one: use results_of({step!r})",
            )
        return values[0]

    def _stored_groups(self, home: Shard, place: str) -> Iterator[tuple[int, list[list[Json]]]]:
        """Yield the stored arguments of a step. Raises as ``StateSignatures.open``."""
        number, data = 1, step_part(home, place, 1)
        while data is not None:
            following = step_part(home, place, number + 1)
            part = self._signatures.open(_part_place(place, number, last=following is None), data)
            yield from cast("list[tuple[int, list[list[Json]]]]", loads(part))
            number, data = number + 1, following

    def _sealed(self, place: str, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the parts of a step's jobs as they are stored at ``place``, one behind: the last one is signed as such."""
        number, before = 0, None
        for part in parts:
            if before is not None:
                yield self._signatures.seal(_part_place(place, number, last=False), before)
            number, before = number + 1, part
        if before is not None:
            yield self._signatures.seal(_part_place(place, number, last=True), before)

    def _home_of(self, workflow: NewWorkflow) -> Shard:
        found: dict[str, tuple[Shard, str]] = {}
        for step in workflow.steps:
            for jobs in step.jobs:
                shard = self._client.shard(PushRequest(jobs.declaration, [], None, jobs.options))
                # The stored arguments of the steps take memory too.
                shard.held_back.check(jobs.declaration.wire_name)
                found.setdefault(
                    shard.name, (shard, f"{jobs.declaration.wire_name} of the step {step.name!r} to {shard.name}")
                )
        if len(found) > 1:
            goes = ", ".join(text for _, text in found.values())
            raise WorkflowError(
                workflow.name,
                f"its jobs are of several shards: {goes}. Steps are counted on one: route the classes to one shard",
            )
        return next(iter(found.values()))[0]

    def _queue_of(self, jobs: NewStepJobs) -> str:
        return str(jobs.options.get("queue") or self._client.route(jobs.declaration).queue)

    def _definition(self, workflow: NewWorkflow) -> WorkflowDefinition:
        return WorkflowDefinition(tuple(_step(workflow.name, one) for one in workflow.steps))

    @staticmethod
    def _advancer(shard: str, queue: str) -> CoreSetter[[str, str, str]]:
        return WorkflowStepWorker.set(queue=queue, shard=shard)


def _signed_facts(workflow_id: str, fields: Mapping[str, str]) -> tuple[StatePlace, bytes]:
    """Return the fields of a workflow that scripts never change, at their place: they decide which jobs its steps get."""
    facts = dumps([fields.get(name, "") for name in _SIGNED_FIELDS])
    return StatePlace("workflow", workflow_keys.workflow(workflow_id)), facts


def _part_place(place: str, number: int, *, last: bool) -> StatePlace:
    # With ``last`` no part can be cut off: the step would succeed without its jobs.
    return StatePlace("step part", place, (number, last))


def _found(home: Shard, fields: Mapping[str, str] | None) -> tuple[Shard, Mapping[str, str]] | None:
    return None if fields is None else (home, fields)


def _step(workflow: str, new: NewStep) -> WorkflowStep:
    jobs = tuple(_step_jobs(workflow, new.name, one) for one in new.jobs)
    return WorkflowStep(new.name, new.on, new.after, jobs, new.keeps_results)


def _step_jobs(workflow: str, step: str, new: NewStepJobs) -> StepJobs:
    options = {
        name: value.total_seconds() if isinstance(value, timedelta) else value for name, value in new.options.items()
    }
    args, kwargs = list(new.function_args), dict(new.function_kwargs or {})
    received = [[_stored_argument(value) for value in row] for row in new.received]
    try:
        check_strict_json([args, kwargs, received])
    except NotJsonError as error:
        of = new.function or new.declaration.wire_name
        raise WorkflowError(workflow, f"step {step!r}: the arguments of {of} must be JSON; {error.reason}") from None
    return StepJobs(new.declaration.wire_name, options, new.function, args, kwargs or None, received)


def _stored_argument(value: Any) -> list[Json]:
    """Return an argument as the definition of a workflow stores it (``StepJobs.received``)."""
    return [value.step, "all" if value.all_jobs else "one"] if isinstance(value, StepResult) else [value]


def _setter_of(workflow_id: str, jobs: StepJobs) -> CoreSetter[Any]:
    worker: Any = registry.find(jobs.worker)
    if worker is None:
        raise WorkflowError(
            workflow_id, f"no class {jobs.worker!r} is loaded in this process. Deploy it again, or cancel the workflow"
        )
    return cast("CoreSetter[Any]", worker.set(**jobs.options))
