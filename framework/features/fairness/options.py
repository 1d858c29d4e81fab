"""Declare the options of ``set`` that belong to fairness."""

from typing import Annotated, TypedDict

from framework.declare.job_option import PRIORITIES
from framework.types import Priority


class FairnessOptions(TypedDict, total=False):
    """The level of one job."""

    priority: Annotated[Priority, PRIORITIES.validator]
    """The level of the job in its queue, for a class with ``priority``."""
