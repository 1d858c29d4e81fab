"""Hold everything that the jobs of one class with the same options share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from framework.declare.declaration import Declaration
from framework.push.normalize import ExtraFields, inherited_context
from framework.push.template import JobTemplate
from framework.push.unique_push import UniquePush
from framework.shard.shard import Shard
from framework.types import Jid, Json
from framework.wire.status_key import StatusCommand, TrackedJob


class PushPlan(NamedTuple):
    """Hold everything that all jobs of one class with the same options share: destination, template, context, limits."""

    declaration: Declaration
    shard: Shard
    template: JobTemplate
    context: Mapping[str, Json]
    status_ttl_s: int
    """Seconds that their status is kept; 0 if they are not tracked."""
    extra_fields: ExtraFields | None
    raw_size_limit: int
    """Arguments of fewer bytes are written without a size check."""
    unique: UniquePush | None
    """Writes the jobs of a deduplicated class."""

    def unique_push(self, *, scheduled: bool) -> UniquePush | None:
        """Return the deduplication of a push made here and now, or ``None`` if this push must not be deduplicated."""
        unique = self.unique
        return unique if unique is not None and unique.is_enabled(scheduled=scheduled) else None

    def ambient_fields(self) -> Mapping[str, Json]:
        """Return the context fields and extra fields of a push made here and now."""
        ambient = inherited_context(self.declaration)
        if self.extra_fields is not None:
            ambient = {**ambient, **self.extra_fields()}
        return {**ambient, **self.context} if self.context else ambient

    def tracked_job(self, jid: Jid) -> TrackedJob | None:
        """Return the tracked job for a status, or ``None`` if the class is not tracked."""
        return TrackedJob(jid, self.status_ttl_s) if self.status_ttl_s else None

    def status_commands(self, jids: Sequence[Jid], times: Sequence[float | None]) -> list[StatusCommand]:
        """Return the commands that record jobs as queued, now or for their due times."""
        if not self.status_ttl_s:
            return []
        return [TrackedJob(jid, self.status_ttl_s).queued_command(at) for jid, at in zip(jids, times, strict=True)]
