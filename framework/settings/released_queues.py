"""Read the queues of earlier releases from workers/released.yml: jobs may be left in them after a rule or a class has changed.

``check-compat --release`` writes the file; the queues of releases before the last one stay in it for as long as jobs may be left.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from framework.settings.model import CoreSettings
from framework.settings.yaml_file import YamlError, read_yaml
from framework.typeguards import is_mapping

MAX_BYTES = 16 * 1024 * 1024
"""The size limit of the file, enough for tens of thousands of workers."""

QueueOnShard: TypeAlias = tuple[str, str]


class ReleasedQueues(NamedTuple):
    """The queues of the last release by the wire name of their class, and those of releases before, whose classes are not known."""

    of_workers: Mapping[str, tuple[QueueOnShard, ...]] = {}
    former: tuple[QueueOnShard, ...] = ()

    def all_places(self) -> Iterator[QueueOnShard]:
        """Yield each queue with its shard."""
        for places in self.of_workers.values():
            yield from places
        yield from self.former


def read_released_queues(settings: CoreSettings) -> ReleasedQueues:
    """Return the queues of the file, none without one. Raises YamlError for a malformed file."""
    path = settings.generated_dir / "released.yml"
    if not path.exists():
        return ReleasedQueues()
    found = read_yaml(path, max_bytes=MAX_BYTES)
    if not is_mapping(found):
        raise YamlError("is not a manifest of releases")
    workers = {name: tuple(_of_worker(entry)) for name, entry in _members(found, "workers") if is_mapping(entry)}
    former = [
        (queue, str(shard))
        for queue, shards in _members(found, "former_queues")
        if is_mapping(shards)
        for shard in shards
    ]
    return ReleasedQueues(workers, tuple(former))


def _of_worker(entry: Mapping[str, Any]) -> Iterator[QueueOnShard]:
    for name in ("queue", "retry_queue"):
        queue, shard = entry.get(name), entry.get("shard")
        if isinstance(queue, str) and isinstance(shard, str):
            yield queue, shard


def _members(found: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    members = found.get(name)
    if is_mapping(members):
        yield from ((str(key), value) for key, value in members.items())
