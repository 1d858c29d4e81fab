"""Decide once what all jobs of one class with the same options share."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.push.deduplication import Deduplication
from framework.push.job_batch import PayloadBuilder
from framework.push.normalize import NO_CONTEXT, ExtraFields
from framework.push.recording import TASK_FIELDS, Destination, PushRecorder
from framework.shard.shard import Shard
from framework.types import Json


class PushPlan(NamedTuple):
    """Hold the shard, the builder of the payloads (it knows queue, limits and context), and the deduplication."""

    declaration: Declaration
    shard: Shard
    payloads: PayloadBuilder
    extra_fields: ExtraFields | None
    deduplication: Deduplication | None
    recorder: PushRecorder | None = None
    """Records the jobs of a tracked class before they are written."""

    @property
    def destination(self) -> Destination:
        """The class and the shard, for the recorder."""
        return Destination(self.declaration, self.shard.name)

    def locks(self, *, scheduled: bool) -> Deduplication | None:
        """Return the deduplication of a push made here and now, or ``None`` if this push must not be deduplicated."""
        found = self.deduplication
        return found if found is not None and found.is_enabled(scheduled=scheduled) else None

    def step_locks(self, *, scheduled: bool) -> Deduplication | None:
        """Return the deduplication, as ``locks`` does, for a job that a script writes with other things; ``None`` with a window."""
        found = self.locks(scheduled=scheduled)
        return found if found is not None and found.window_s is None else None

    def fields_of_push(self) -> Mapping[str, Json]:
        """Return the additional payload fields of a push made here and now."""
        return NO_CONTEXT if self.extra_fields is None else self.extra_fields()


PushStep: TypeAlias = Callable[[PushPlan, Any], PushPlan]
"""Returns the plan of a class with what a feature adds to it. It gets the plan and the ``Client``, of which it may ask services."""


def recorded_plan(plan: PushPlan, recorder: PushRecorder) -> PushPlan:
    """Return the plan of a tracked class: its jobs are recorded, and their payloads name the task of the push."""
    if plan.deduplication is not None:
        plan.deduplication.on_duplicates = partial(recorder.duplicates, plan.destination)
    return plan._replace(recorder=recorder, extra_fields=partial(_with_task, plan.extra_fields))


def _with_task(extra: ExtraFields | None) -> Mapping[str, Json]:
    fields = NO_CONTEXT if extra is None else extra()
    found = TASK_FIELDS.get()
    return fields if not found else {**fields, **found}
