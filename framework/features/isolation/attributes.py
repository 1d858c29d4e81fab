"""Declare the attributes of jobs that run in a process of their own."""

from typing import ClassVar, get_args

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group
from framework.types import Isolation


@attribute_group
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
