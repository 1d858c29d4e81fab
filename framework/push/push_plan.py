"""Decide once what all jobs of one class with the same options share."""

from collections.abc import Mapping
from typing import NamedTuple

from framework.declare.declaration import Declaration
from framework.push.deduplication import Deduplication
from framework.push.job_batch import PayloadBuilder
from framework.push.normalize import NO_CONTEXT, ExtraFields
from framework.shard.shard import Shard
from framework.types import Json


class PushPlan(NamedTuple):
    """Hold the shard, the builder of the payloads (it knows queue, limits and context), and the deduplication."""

    declaration: Declaration
    shard: Shard
    payloads: PayloadBuilder
    extra_fields: ExtraFields | None
    deduplication: Deduplication | None

    def locks(self, *, scheduled: bool) -> Deduplication | None:
        """Return the deduplication of a push made here and now, or ``None`` if this push must not be deduplicated."""
        found = self.deduplication
        return found if found is not None and found.is_enabled(scheduled=scheduled) else None

    def fields_of_push(self) -> Mapping[str, Json]:
        """Return the additional payload fields of a push made here and now."""
        return NO_CONTEXT if self.extra_fields is None else self.extra_fields()
