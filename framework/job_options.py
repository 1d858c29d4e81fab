"""Options of your own that travel with jobs, for middlewares of your own.

    from framework.job_options import declare_option

    USE_TASK_EVENT = declare_option("use_task_event", bool, default=False, doc="Whether a run writes a task event.")

Then ``use_task_event = True`` in a worker class and ``Worker.set(use_task_event=True)`` are checked as the framework's own names are.
A middleware reads the value of a job with ``USE_TASK_EVENT.of(worker, job)``. See docs/guides/middleware.md.
"""

from framework.declare.declare_option import declare_option
from framework.declare.job_option import JobOption

__all__ = ["JobOption", "declare_option"]
