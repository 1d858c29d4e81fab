"""Declare the attributes of jobs that run in a process of their own."""

from typing import ClassVar, get_args

from framework.declare import validators
from framework.declare.attribute import ClassValues, attribute, attribute_group
from framework.declare.validators import ErrorCollector
from framework.types import Isolation


def _check(faults: ErrorCollector, found: ClassValues) -> None:
    values, cls = found.values, found.cls
    if values["isolation"] is not None and (cls._aw_is_iterable or hasattr(cls, "perform_with_capacity")):
        kind = (
            "an IterableWorker: its worker process saves the cursor"
            if cls._aw_is_iterable
            else "a LimitedCapacityWorker"
        )
        faults.add(f"isolation does not fit {kind}. Let it push jobs of an isolated class.", "isolation")
    if values["memory_limit"] is not None and values["isolation"] is None and "isolation" not in found.wrong:
        message = (
            f"memory_limit = {values['memory_limit']!r} limits nothing without isolation = 'process': the threads of a process "
            "share its memory. Declare both, or limit the worker processes: cluster --memory-limit."
        )
        faults.add(message, "memory_limit")


@attribute_group(check=_check)
class IsolationAttributes:
    """Whether each job has a process of its own, and its memory."""

    isolation: ClassVar[Isolation | None] = attribute(
        None,
        validator=validators.optional(validators.one_of(*get_args(Isolation))),
        group="running",
        effect="A job that leaks, crashes, exits or hangs affects no other job. Its process is killed a few seconds after its "
        "`timeout` or its cancellation, and when its worker process stops.",
        trap="It is no sandbox: the process has the rights, the files and the environment of its worker process. A job costs "
        "some milliseconds more, and what it keeps in memory is gone afterwards.",
    )
    """``process``: each job runs in a process of its own, which ends with it. ``None``: in a thread, or as a task."""
    memory_limit: ClassVar[int | None] = attribute(
        None,
        validator=validators.optional(validators.integer(1)),
        group="running",
        effect="Beyond it the job fails with `JobMemoryError`. It counts private memory, the loaded modules included.",
        trap="Processes that the job starts have the same limit each, and not together. Only Linux enforces it.",
    )
    """The most memory, in bytes, of the process of a job with ``isolation = 'process'``."""
