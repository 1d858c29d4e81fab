"""Declare the options of ``set`` that belong to status."""

from datetime import timedelta
from typing import Annotated, TypedDict

from framework.declare import validators


class StatusOptions(TypedDict, total=False):
    """How long the state of one job is kept."""

    status_expiration: Annotated[timedelta | float, validators.duration]
    """How long the state of the job is kept after its last change (``framework.status``)."""
