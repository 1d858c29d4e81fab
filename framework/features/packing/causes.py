"""Find packed jobs that wait for a payload store."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

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
        names = [*queues, *held.values()]
        reasons = {name: _reason(client, reply) for name, reply in zip(names, replies, strict=True)}
        away = {name: reason for name, reason in reasons.items() if reason}
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


def _reason(client: "redis.Redis", reply: Any) -> str:
    """Return why the next jobs of a queue or set cannot be read now: empty if they are in Redis, can be read, or are damaged."""
    first: object = (cast("list[object]", reply) or [None])[0] if isinstance(reply, list) else reply
    # A key of another type answers with an error.
    if not isinstance(first, bytes) or stored_id(first) is None:
        return ""
    try:
        block_store(client).read(first)
    except StoredBlocksError as error:
        return error.reason
    except PayloadError:
        pass
    return ""
