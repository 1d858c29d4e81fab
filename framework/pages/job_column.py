"""A column that a feature or an application adds to the lists of jobs, and to the page of a job."""

from abc import ABC, abstractmethod
from typing import ClassVar

from framework.admin.job_record import JobRecord
from framework.pages.caller import Role
from framework.telemetry.logs import LogRateLimit

_MOST_TEXT = 200
_LOG_INTERVAL_S = 60.0


class JobColumn(ABC):
    """One column. The class has no state of a request: one object serves all.

    A value is text, and every page escapes it. It is read for each listed job, so ``value`` must not ask a server.
    """

    title: ClassVar[str]
    """Its heading, unlike that of any other column."""
    role: ClassVar[Role] = "operate"
    """The role for the class of a job that shows the value. ``operate`` sees all arguments; say ``read`` for what is no secret."""

    @abstractmethod
    def value(self, job: JobRecord) -> str:
        """Return what is shown of a job; empty for nothing."""


_log_limit = LogRateLimit(_LOG_INTERVAL_S)


def shown_value(column: JobColumn, job: JobRecord) -> str:
    """Return the value, cut to a bounded length; empty if the code of the application fails."""
    try:
        return str(column.value(job))[:_MOST_TEXT]
    except Exception as error:  # noqa: BLE001 - code of the application may raise anything
        _log_limit.error(
            column.title,
            f"the column {column.title} of the dashboard has failed, and shows nothing. Look at the error",
            "feature.failed",
            error=error,
        )
        return ""
