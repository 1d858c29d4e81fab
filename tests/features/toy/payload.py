"""The payload field of the toy."""

from framework.declare.declaration import Declaration
from framework.types import Payload

LABEL = "toy_label"


def add_label(fields: Payload, declaration: Declaration) -> None:
    """Let the jobs of a class have its label."""
    label = declaration.facts["toy_label"]
    if label is not None:
        fields[LABEL] = label
