"""Find the jobs whose payload has a field, in every key of a shard that holds jobs."""

from collections.abc import Iterator, Sequence

import redis

from framework.admin.job_counts import OnProgress
from framework.admin.search import JobStore, list_job_stores, payload_of_member, scan_members, search_lists

_LISTS = ("queue", "in flight", "migrating")


def jobs_with_field(
    client: "redis.Redis", field: str, on_progress: OnProgress, *, backwards: bool = False
) -> Iterator[bytes]:
    """Yield the payloads that contain the name of a field, in the order of a job's way or in the opposite one.

    A job that moves to a place that was already searched is missed. Raises redis errors.
    """
    text = f'"{field}"'.encode()
    stores = list_job_stores(client, on_progress)
    lists = [store for store in stores if store.kind in _LISTS]
    groups = (_in_sets(client, stores, text), (one.data for one in search_lists(client, lists, text, on_progress)))
    for group in groups[:: -1 if backwards else 1]:
        yield from group


def _in_sets(client: "redis.Redis", stores: Sequence[JobStore], text: bytes) -> Iterator[bytes]:
    for store in stores:
        if store.kind in _LISTS:
            continue
        for page in scan_members(client, store.key, text):
            for member, _ in page:
                yield payload_of_member(member) if store.kind in ("waiting", "paused") else member
