"""Settings that map or list an application's own classes and queues."""

from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator

from framework.settings import validators
from framework.typeguards import is_mapping
from framework.types import QUEUE_NAME, QUEUE_NAME_FORMAT

MAX_QUEUE_LIMIT = 1_000_000

ClassPatterns: TypeAlias = tuple[Annotated[str, AfterValidator(validators.class_pattern)], ...]


def _check_retired(value: Any) -> Any:
    # All entries of the key are commented out.
    if value is None:
        return {}
    if not is_mapping(value):
        raise ValueError("must map class names to reasons, for example {'Reports::MonthlyWorker': 'removed in 4.2'}")
    return value


RetiredWorkers = Annotated[
    dict[
        Annotated[str, AfterValidator(validators.wire_name)],
        Annotated[str, BeforeValidator(validators.retirement_reason)],
    ],
    BeforeValidator(_check_retired),
]


def _check_limits(value: Any) -> Any:
    if value is None:
        return {}
    if not is_mapping(value):
        raise ValueError("must map queue names to numbers, for example {reports: 4}")
    return value


def _check_queue(name: str) -> str:
    if QUEUE_NAME.fullmatch(name) is None:
        raise ValueError(f"must be a queue; {QUEUE_NAME_FORMAT}")
    return name


QueueNames: TypeAlias = tuple[Annotated[str, AfterValidator(_check_queue)], ...]

QueueLimits = Annotated[
    dict[Annotated[str, AfterValidator(_check_queue)], Annotated[int, validators.whole_number(1, MAX_QUEUE_LIMIT)]],
    BeforeValidator(_check_limits),
]
