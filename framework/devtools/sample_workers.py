"""The worker classes of the sample platform: the dashboard shows their attributes and routes. Real processes run jobs of some."""

import random
import time
from collections.abc import Mapping
from typing import Any

from framework.application_worker import ApplicationWorker
from framework.declare.policy_options import Deduplicate
from framework.devtools.sample_platform import (
    BAD_DEPLOY,
    FLOOD,
    LEFT_LOCK,
    LIVE,
    LIVE_FROM,
    POISON,
    SLOW,
    STUCK,
    SampleClass,
    sample_classes,
)
from framework.features.breaker.attributes import BreakAfter

_PAGE_S = 0.5
_LEAST_PAGES, _MORE_PAGES = 8, 60
_FAILS_EACH, _FAILS_SHARE = 7, 0.7
"""The jobs of every so many records fail, with this probability."""

_MORE: Mapping[str, Mapping[str, Any]] = {
    BAD_DEPLOY: {"tags": ("checkout",)},
    LEFT_LOCK: {"idempotent": True, "deduplicate": Deduplicate("until_executed")},
    SLOW: {"resource_boundary": "memory"},
    FLOOD: {"resource_boundary": "cpu"},
    STUCK: {"concurrency_limit": 3, "has_external_dependencies": True},
    POISON: {"break_after": BreakAfter(deaths=3), "resource_boundary": "memory"},
}


def perform(self: ApplicationWorker, record_id: int) -> None:
    """Export a record page by page, then push the next record. Only jobs of the classes ``LIVE`` run."""
    for page in range(_LEAST_PAGES + record_id % _MORE_PAGES):
        if self.cancelled or self.interrupted:
            return
        export_page(record_id, page)
    # A retry may succeed.
    if record_id % _FAILS_EACH == 0 and random.random() < _FAILS_SHARE:
        raise TimeoutError(f"the storage has not confirmed record {record_id}")
    if record_id >= LIVE_FROM:
        type(self).perform_async(record_id + 1)


def export_page(record_id: int, page: int) -> None:
    """Write one page of a record."""
    wait_for_storage(record_id * _MORE_PAGES + page)


def wait_for_storage(part: int) -> None:
    """Wait for the storage, which takes longer for some parts."""
    time.sleep(_PAGE_S * (1 + part % 3) / 2)


def declare_workers(module: str) -> list[type[ApplicationWorker]]:
    """Declare the classes as those of a module: an import of this file alone must declare none."""
    return [_declare(one, module) for one in sample_classes()]


def _declare(one: SampleClass, module: str) -> type[ApplicationWorker]:
    facts: dict[str, object] = {
        "__doc__": f"Stand for the jobs of {one.area}.",
        "__module__": module,
        "wire_name": one.name,
        "feature_category": one.area,
        "urgency": one.urgency,
        "perform": perform,
        "loggable_arguments": ("record_id",),
        "track": one.name in LIVE.values(),
        **_MORE.get(one.name, {}),
    }
    return type(one.name.rpartition("::")[2], (ApplicationWorker,), facts)
