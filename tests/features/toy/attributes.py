"""Declare the attribute and the option of the toy."""

from typing import Annotated, ClassVar, TypedDict

from framework.declare import validators
from framework.declare.attribute import attribute, attribute_group


@attribute_group()
class ToyAttributes:
    """The label of the jobs of a class."""

    toy_label: ClassVar[str | None] = attribute(
        None,
        validator=validators.optional(validators.identifier),
        group="flow_control",
        effect="Jobs are counted by their label as they end.",
        trap="Jobs with the label `refused` do not run.",
    )
    """The label of the jobs."""


class ToyOptions(TypedDict, total=False):
    """The label of one job."""

    toy_label: Annotated[str, validators.identifier]
    """The label of the job."""
