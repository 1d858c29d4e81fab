"""Count the jobs that each encryption key has encrypted."""

from collections import Counter

import redis

from framework.admin.field_scan import jobs_with_field
from framework.admin.statistics import OnProgress
from framework.wire.json import loads_object
from framework.wire.protected import ENCRYPTION_KEY


def count_jobs_by_key(client: "redis.Redis", on_progress: OnProgress) -> Counter[str]:
    """Return the number of jobs by the name of their key, in every key of the shard that holds jobs. Raises redis errors."""
    counts = Counter[str]()
    for data in jobs_with_field(client, ENCRYPTION_KEY, on_progress):
        name = loads_object(data).get(ENCRYPTION_KEY)
        if isinstance(name, str):
            counts[name] += 1
    return counts
