"""Explain what holds a label."""

from collections.abc import Iterator

import redis

from framework.admin.explain_reader import ExplainReader
from framework.features.toy.payload import LABEL
from framework.types import Payload


def notices(client: "redis.Redis") -> Iterator[str]:
    yield f"the toy has counted {client.hlen('aw:toy:labels')} labels"


class LabelReader(ExplainReader):
    def resources(self, payload: Payload, identity: str) -> list[str]:
        return [f"the label {payload[LABEL]}"] if LABEL in payload else []
