"""Explain what holds a label."""

from framework.admin.explain_reader import ExplainReader
from framework.features.toy.payload import LABEL
from framework.types import Payload


class LabelReader(ExplainReader):
    def resources(self, payload: Payload, identity: str) -> list[str]:
        return [f"the label {payload[LABEL]}"] if LABEL in payload else []
