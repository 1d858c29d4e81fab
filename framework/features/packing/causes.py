"""Find packed jobs that wait for a payload store."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import redis

from framework.admin.diagnosis.cause import Cause, CauseCode, CauseReader
from framework.command_line import remedy_command
from framework.errors import PayloadError, StoredBlocksError
from framework.store.block_store import block_store
from framework.text import join_names
from framework.wire import keys
from framework.wire.blocks import stored_id


class PackingCauses(CauseReader):
    """Find the queues and the held jobs whose next jobs are in a payload store that this host cannot read."""

    alerts: ClassVar[Mapping[CauseCode, Sequence[str]]] = {
        "packed_jobs_away": ("ClassNotDequeued", "HeldJobsGrowing", "OldestHeldTooOld", "OldestJobTooOld"),
    }

    def causes(self) -> Iterator[Cause]:
        client, queues = self.facts.client, {one.name: one.size for one in self.facts.queues}
        held = {one.key: one.name for one in self.facts.held_keys}
        pipeline: Any = client.pipeline(transaction=False)
        for name in queues:
            pipeline.lindex(keys.queue(name), -1)
        for key in held:
            pipeline.zrange(key, 0, 0)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
        # A key of another type answers with an error.
        first = [one[0] if isinstance(one, list) and one else one for one in replies]
        waiting = [one if isinstance(one, bytes) and stored_id(one) else None for one in first]
        reasons = [_reason(client, one) if one else "" for one in waiting]
        names = [*queues, *held.values()]
        away = {name: reason for name, reason in zip(names, reasons, strict=True) if reason}
        if away:
            yield self._away(sorted(away), next(iter(away.values())), sum(queues.get(name, 0) for name in away))

    def _away(self, names: Sequence[str], reason: str, jobs: int) -> Cause:
        return Cause(
            code="packed_jobs_away",
            shard=self.facts.shard,
            cause=f"the next jobs of {join_names(names, max_names=3)} are in a payload store that cannot be read",
            evidence=[f"{reason}, as this host sees it", "packed jobs are in the payload store (packing_place)"],
            remedy=remedy_command("payloads", "show"),
            effect="shows the store and its error: when processes can read it again, these jobs run by themselves",
            certainty=12.0,
            jobs=jobs,
            queues=frozenset(names),
        )


def _reason(client: "redis.Redis", reference: bytes) -> str:
    """Return why the block of a reference cannot be read now; empty if it can, or is damaged."""
    try:
        block_store(client).read(reference)
    except StoredBlocksError as error:
        return error.reason
    except PayloadError:
        pass
    return ""
