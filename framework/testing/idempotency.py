"""Check that a second run of a job changes nothing."""

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from framework.declare.setter import declaration_of
from framework.errors import Discard
from framework.testing.json_values import same_json
from framework.testing.waiting_jobs import WorkerClass
from framework.typeguards import short_repr


def assert_idempotent(worker: WorkerClass, *args: Any, state: Callable[[], object]) -> None:
    """Run a job twice here and now, and fail if the second run changed what ``state`` returns.

    ``state`` reads what the job changes: rows, files, enqueued jobs. A run that ends by ``Discard`` counts.

    Raises:
        AssertionError: the class does not declare ``idempotent = True``, or the second run changed the state.
        Exception: what a run raised.
    """
    __tracebackhide__ = True
    name = declaration_of(worker).class_name
    if not declaration_of(worker).idempotent:
        raise AssertionError(
            f"{name} does not declare idempotent = True: add it, so that duplicates of its jobs are dropped."
        )
    found: list[object] = []
    for _ in range(2):
        with suppress(Discard):
            worker.perform_inline(*args)
        # A copy: the second run may change the object that the first look returned.
        found.append(copy.deepcopy(state()))
    first, second = found
    if not (first == second and same_json(first, second)):
        raise AssertionError(
            f"{name} is not idempotent for the arguments {short_repr(list(args))}: the second run changed the state.\n"
            f"  after the first run:  {short_repr(first)}\n  after the second run: {short_repr(second)}"
        )
