"""The framework's classes of the guideline mix: one for each combination of a namespace and three policies."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import body

from framework import ApplicationWorker
from framework.context import bound

OPTIONS: dict[str, dict[str, Any]] = {
    "Idempotent": {"idempotent": True},
    "Limited": {"concurrency_limit": 1_000},
    "Tracked": {"status_expiration": 3_600},
}
NAMESPACES = {"orders": "order_management", "search": "global_search", "mails": "notifications"}
"""The namespaces with the feature category of their classes."""


class GuidelineWorker(ApplicationWorker, abstract=True):
    """An empty job with the id of a record, some with records."""

    def perform(self, _number: int, _records: list[dict[str, Any]] | None = None) -> None:
        body.noop()


def _defined(namespace: str, category: str, policies: Sequence[str]) -> type[GuidelineWorker]:
    options = {name: value for policy in policies for name, value in OPTIONS[policy].items()}
    own = {"__module__": __name__, "queue_namespace": namespace, "feature_category": category, **options}
    worker: type[GuidelineWorker] = type(f"{namespace.title()}{''.join(policies)}Worker", (GuidelineWorker,), own)
    return worker


WORKERS = {
    (namespace, policies): _defined(namespace, category, policies)
    for namespace, category in NAMESPACES.items()
    for chosen in product(*((None, name) for name in OPTIONS))
    for policies in [tuple(name for name in chosen if name)]
}


def push(namespace: str, policies: Sequence[str], number: int, *records: Any) -> None:
    """Push one job in the context of a request, as the code of a platform does."""
    with bound(
        correlation_id=f"{number:032x}",
        caller_id=f"POST /{namespace}",
        user=f"user_{number % 1_000}",
        user_id=number % 1_000,
        project=f"group_{number % 100}/project_{number % 500}",
        root_namespace=f"group_{number % 100}",
        remote_ip=f"192.0.2.{number % 250}",
        client_id=f"user/{number % 1_000}",
    ):
        WORKERS[namespace, tuple(policies)].perform_async(number, *records)
