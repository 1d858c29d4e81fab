"""Count the jobs that each encryption key has encrypted."""

import itertools
from collections import Counter
from collections.abc import Iterator

import redis

from framework.admin.job_counts import OnProgress
from framework.admin.search import JobStore, list_job_stores, payload_of_member, scan_members, search_lists
from framework.wire.json import loads_object
from framework.wire.protected import ENCRYPTION_KEY

_LISTS = ("queue", "in flight", "migrating")


def count_jobs_by_key(client: "redis.Redis", on_progress: OnProgress) -> Counter[str]:
    """Return the number of jobs by the name of their key, in every key of the shard that holds jobs. Raises redis errors."""
    text = f'"{ENCRYPTION_KEY}"'.encode()
    stores = list_job_stores(client, on_progress)
    lists = [store for store in stores if store.kind in _LISTS]
    in_lists = (one.data for one in search_lists(client, lists, text, on_progress))
    in_sets = (data for store in stores if store.kind not in _LISTS for data in _members(client, store, text))
    counts = Counter[str]()
    for data in itertools.chain(in_lists, in_sets):
        name = loads_object(data).get(ENCRYPTION_KEY)
        if isinstance(name, str):
            counts[name] += 1
    return counts


def _members(client: "redis.Redis", store: JobStore, text: bytes) -> Iterator[bytes]:
    for page in scan_members(client, store.key, text):
        for member, _ in page:
            yield payload_of_member(member) if store.kind in ("waiting", "paused") else member
