"""Declare the options of ``set`` that belong to results."""

from datetime import timedelta
from typing import Annotated, TypedDict

from framework.declare import validators


class ResultOptions(TypedDict, total=False):
    """How long the result of one call is kept."""

    result_ttl: Annotated[timedelta | float, validators.duration]
    """For how long the result of a ``call`` is kept: an hour by default."""
