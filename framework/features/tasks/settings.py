"""Settings of tasks."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from framework.settings import validators
from framework.settings.base import Section, SettingsBase
from framework.settings.urls import check_task_url


class TaskSection(Section):
    """The database of tasks and events (``framework.tasks``), and what happens while it is down."""

    url: Annotated[str, AfterValidator(check_task_url)] | None = Field(default=None, repr=False)
    """``sqlite:///...`` or ``postgresql+psycopg://...``; without one, the file ``tasks.db`` in ``var_dir``."""
    database_down: Literal["continue", "wait"] = "continue"
    """Whether jobs go on while the database is down, with their events kept in Redis, or wait for it."""
    params: Literal["loggable", "whole"] = "loggable"
    """Whether events have the arguments as log lines show them (``loggable_arguments``), or all of them."""
    ledger: Literal["none", "keep", "heal"] = "none"
    """Whether events keep the payloads of waiting jobs, and whether the leader enqueues jobs again that Redis has lost."""
    keep: Annotated[float, validators.bounded_number(0.01, 36_500)] | None = None
    """Days after their end for which tasks and events are kept; without it, for ever."""


class TaskSettings(SettingsBase):
    """Where tasks are recorded, and how."""

    tasks: TaskSection = TaskSection()

    @property
    def tasks_url(self) -> str:
        """The URL of the database of tasks."""
        return self.tasks.url or f"sqlite:///{self.var_dir / 'tasks.db'}"
