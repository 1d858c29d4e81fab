"""Find the jobs whose payload has a field, in every key of a shard that holds jobs."""

from collections.abc import Iterator, Sequence

import redis

from framework.admin.search import JobStore, list_job_stores, payload_of_member, scan_members, search_lists
from framework.admin.statistics import OnProgress
from framework.feature import features

_LISTS = ("queue", "in flight", "migrating")


def jobs_with_field(
    client: "redis.Redis", field: str, on_progress: OnProgress, *, backwards: bool = False
) -> Iterator[bytes]:
    """Yield the payloads that contain the name of a field, in the order of a job's way or in the opposite one.

    Jobs that a feature stores, such as the callbacks of a batch, are among them. A job that moves to a place that was searched
    before is missed. Raises redis errors.
    """
    text = f'"{field}"'.encode()
    stores = list_job_stores(client, on_progress)
    lists = [store for store in stores if store.kind in _LISTS]
    groups = (
        (data for one in features() if one.stored_jobs is not None for data in one.stored_jobs.load()(client, text)),
        _in_sets(client, stores, text),
        (one.data for one in search_lists(client, lists, text, on_progress)),
    )
    for group in groups[:: -1 if backwards else 1]:
        yield from group


def _in_sets(client: "redis.Redis", stores: Sequence[JobStore], text: bytes) -> Iterator[bytes]:
    for store in stores:
        if store.kind in _LISTS:
            continue
        for page in scan_members(client, store.key, text):
            for member, _ in page:
                yield payload_of_member(member) if store.kind in ("waiting", "paused") else member
