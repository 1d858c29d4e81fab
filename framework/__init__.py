"""Export the names that authors of workers use.

An import opens no socket and loads few modules: each name is loaded at its first use, the client at the first push of the process.
A web server that forks calls ``boot()`` before, so that its children share the loaded modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from framework.admin import port as admin_port
from framework.declare import port
from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.application_worker import ApplicationWorker
    from framework.by_name import aenqueue, enqueue
    from framework.cancellation import acancel, cancel
    from framework.declare.policy_options import Deduplicate
    from framework.declare.spread import spread
    from framework.errors import (
        BacklogFullError,
        BusinessError,
        ConfigurationError,
        DeclarationError,
        Discard,
        ExceedLimitError,
        FrameworkError,
        OverLimit,
        RetryError,
        RetryLater,
    )
    from framework.features.backlog.attributes import MaxWaiting
    from framework.features.concurrency.attributes import ConcurrencyScope
    from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
    from framework.features.cron.cron_worker import CronWorker
    from framework.features.health.attributes import DeferOnHealth
    from framework.features.history.admin import adeployed, deployed
    from framework.features.iteration.iterable import IterableWorker
    from framework.features.leases.reenqueuer import ReenqueuerWorker
    from framework.features.results.calls import aresult, result
    from framework.function_jobs import background
    from framework.wire.job import Job
    from framework.wiring.client import boot

__all__ = [
    "ApplicationWorker",
    "BacklogFullError",
    "BusinessError",
    "ConcurrencyScope",
    "ConfigurationError",
    "CronWorker",
    "DeclarationError",
    "Deduplicate",
    "DeferOnHealth",
    "Discard",
    "ExceedLimitError",
    "FrameworkError",
    "IterableWorker",
    "Job",
    "LimitedCapacityWorker",
    "MaxWaiting",
    "OverLimit",
    "ReenqueuerWorker",
    "RetryError",
    "RetryLater",
    "acancel",
    "adeployed",
    "aenqueue",
    "aresult",
    "background",
    "boot",
    "cancel",
    "deployed",
    "enqueue",
    "result",
    "spread",
]

_MODULES = {
    "ApplicationWorker": "framework.application_worker",
    "ConcurrencyScope": "framework.features.concurrency.attributes",
    "CronWorker": "framework.features.cron.cron_worker",
    "Deduplicate": "framework.declare.policy_options",
    "DeferOnHealth": "framework.features.health.attributes",
    "IterableWorker": "framework.features.iteration.iterable",
    "Job": "framework.wire.job",
    "ReenqueuerWorker": "framework.features.leases.reenqueuer",
    "LimitedCapacityWorker": "framework.features.concurrency.limited_capacity",
    "MaxWaiting": "framework.features.backlog.attributes",
    "acancel": "framework.cancellation",
    "adeployed": "framework.features.history.admin",
    "aenqueue": "framework.by_name",
    "aresult": "framework.features.results.calls",
    "background": "framework.function_jobs",
    "boot": "framework.wiring.client",
    "cancel": "framework.cancellation",
    "deployed": "framework.features.history.admin",
    "enqueue": "framework.by_name",
    "result": "framework.features.results.calls",
    "spread": "framework.declare.spread",
}
"""Module of each public name that is no error. Type checkers read it from the imports above."""


def __getattr__(name: str) -> Any:
    return load_name(globals(), name, _MODULES.get(name, "framework.errors"))


def __dir__() -> list[str]:
    return public_names(globals())


def _make_client() -> port.ClientPort:
    client: port.ClientPort = import_module("framework.wiring.client").default_client()
    return client


def _open_access() -> admin_port.Access:
    access: admin_port.Access = import_module("framework.wiring.client").open_access()
    return access


port.bind_factory(_make_client)
admin_port.opener.bind(_open_access)
