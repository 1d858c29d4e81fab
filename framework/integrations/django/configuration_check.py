"""Report errors of the framework's configuration as Django's system checks do."""

from typing import Any

from django.core.checks import CheckMessage, Error

from framework.all_settings import load
from framework.errors import ConfigurationError
from framework.route.loading import checked_router


def check_configuration(**_: Any) -> list[CheckMessage]:
    """Return an error for each problem of the configuration, and of the worker classes under it. Opens no socket."""
    try:
        checked_router(load())
    except ConfigurationError as error:
        return [Error(str(problem), id="application_worker.E001") for problem in error.problems]
    return []
