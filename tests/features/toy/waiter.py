"""Count the jobs with a label, in the step that ends them."""

from framework.features.toy.payload import LABEL
from framework.types import Jid, Payload
from framework.wire.waiters import JobEnd, Waiter


class LabelWaiter(Waiter[str]):
    def read(self, payload: Payload) -> str | None:
        label = payload[LABEL]
        return label if isinstance(label, str) else None

    def wants_answer(self, value: str) -> bool:
        return False

    def named(self, value: str, answer: str) -> str:
        return answer

    def told(self, value: str, jid: Jid, end: JobEnd, answer: str) -> list[str] | None:
        return [value, end]


WAITER: Waiter[str] = LabelWaiter()
