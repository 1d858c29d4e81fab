"""Find the jobs whose payload has a field, in every key of a shard that holds jobs."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import redis

from framework.admin.search import JobStore, list_job_stores, payload_of_member, scan_members, search_lists
from framework.admin.statistics import OnProgress
from framework.errors import PayloadError
from framework.shard.groups import scan_bids
from framework.wire import keys
from framework.wire.batch_fields import EVENTS
from framework.wire.json import loads

_LISTS = ("queue", "in flight", "migrating")


def jobs_with_field(
    client: "redis.Redis", field: str, on_progress: OnProgress, *, backwards: bool = False
) -> Iterator[bytes]:
    """Yield the payloads that contain the name of a field, in the order of a job's way or in the opposite one.

    Callbacks that a batch enqueues at its end are jobs too. A job that moves to a place that was already searched is missed. Raises
    redis errors.
    """
    text = f'"{field}"'.encode()
    stores = list_job_stores(client, on_progress)
    lists = [store for store in stores if store.kind in _LISTS]
    groups = (
        _in_batches(client, text),
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


def _in_batches(client: "redis.Redis", text: bytes) -> Iterator[bytes]:
    names = [name for event in EVENTS for name in (f"on_{event}", f"{event}_at")]
    for bids in scan_bids(client):
        pipeline: Any = client.pipeline(transaction=False)
        for bid in bids:
            pipeline.hmget(keys.batch(bid), names)
        for fields in cast("list[list[bytes | None]]", pipeline.execute()):
            for stored, fired_at in zip(fields[::2], fields[1::2], strict=True):
                if stored is not None and fired_at is None:
                    yield from (one for one in _callbacks(stored) if text in one)


def _callbacks(stored: bytes) -> list[bytes]:
    """Return the payloads in a field of a batch (``batch_fields.Callback``); none if another program has written it."""
    try:
        found: Any = loads(stored, None)
        return [str(payload).encode() for _, payload in found]
    except (PayloadError, TypeError, ValueError):
        return []
