"""Follow many jobs of one purpose in SQL: their progress, their failures with messages, their results.

    from framework.tasks import Task

    with Task.create(EnrolWorker, title="spring list", owner="seller-7") as task:
        task.perform_bulk(EnrolWorker, [(product.id,) for product in products])
    task.progress().counts          # {"enqueue": 190, "working": 10, "finish": 0, "failed": 0, "error": 0}

A class with ``track = True`` is recorded at every push, in a task or not; ``story(jid)`` shows one job. The setting ``tasks.url``
names the database. Needs the extra ``tasks``. Each name is loaded at its first use, and raises ``TaskError`` without the extra.
"""

from typing import TYPE_CHECKING, Any

from framework.features.tasks.access import missing_library
from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.features.tasks.progress import EventMessage, JobEvent, TaskProgress
    from framework.features.tasks.task import Task, story

__all__ = ["EventMessage", "JobEvent", "Task", "TaskProgress", "story"]

_MODULES = {"Task": "framework.features.tasks.task", "story": "framework.features.tasks.task"}


def __getattr__(name: str) -> Any:
    try:
        return load_name(globals(), name, _MODULES.get(name, "framework.features.tasks.progress"))
    except ModuleNotFoundError as error:
        raise missing_library(error) from error


def __dir__() -> list[str]:
    return public_names(globals())
