"""Declare the options of ``set`` that belong to batches."""

from typing import Annotated, Any, TypedDict, cast

from framework.declare.request import JobRequest
from framework.declare.validators import InvalidValue, Validator


def _check_link(value: Any) -> Any:
    # Setters and workers are known by what they have: this module stands below them.
    if isinstance(value, JobRequest) or hasattr(value, "_aw_setter") or hasattr(value, "request"):
        return cast("Any", value)
    raise InvalidValue(LINK.allowed)


LINK = Validator("a worker class, Worker.set(...) or Worker.arguments(...)", _check_link)


class LinkOptions(TypedDict, total=False):
    """The jobs that follow one job."""

    on_death: Annotated[Any, LINK]
    """The class of a job that is enqueued when this one dies: its ``perform`` gets the id of this job. ``Worker.set(...)`` adds
    options, ``Worker.arguments(...)`` gives other arguments. For single pushes."""
    on_success: Annotated[Any, LINK]
    """The same, when this job has succeeded."""
