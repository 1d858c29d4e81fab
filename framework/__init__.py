"""A sharded enterprise worker framework on Sidekiq's data model. Everything a worker author needs is here.

Importing opens no socket: the first push in a process reads the configuration and connects.
"""

from framework.declare.capacity import LimitedCapacityWorker
from framework.declare.policies import ConcurrencyScope, Deduplicate, DeferOnHealth
from framework.declare.worker import ApplicationWorker
from framework.errors import (
    BusinessError,
    ConfigurationError,
    DeclarationError,
    Discard,
    ExceedLimitError,
    FrameworkError,
    RetryError,
    RetryLater,
)
from framework.wire.job import Job
from framework.wiring.connect import bind_default as _bind_default
from framework.wiring.connect import boot

_bind_default()

__all__ = [
    "ApplicationWorker",
    "BusinessError",
    "ConcurrencyScope",
    "ConfigurationError",
    "DeclarationError",
    "Deduplicate",
    "DeferOnHealth",
    "Discard",
    "ExceedLimitError",
    "FrameworkError",
    "Job",
    "LimitedCapacityWorker",
    "RetryError",
    "RetryLater",
    "boot",
]
