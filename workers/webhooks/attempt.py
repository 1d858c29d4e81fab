"""One attempt to deliver an event: the signed message, and the meaning of the receiver's answer.

The headers are those of Standard Webhooks. The id is the same on every attempt, so that a receiver can drop a message that
it has already. The signature covers id, time and body, so that a third party can neither forge nor replay a message.
"""

import base64
import hashlib
import hmac
import json
import time
from typing import Final, NamedTuple

from framework import BusinessError, RetryError
from framework.types import Json
from workers.webhooks.addresses import AddressRefusedError
from workers.webhooks.http_post import Answer, NoAnswerError, post

_TRY_AGAIN: Final = frozenset({408, 425, 429})
GONE: Final = 410


class Message(NamedTuple):
    """A message to send: the URL, the secret that signs it, and the event."""

    url: str
    secret: str
    message_id: str
    name: str
    payload: Json


class TryAgainError(RetryError):
    """The receiver cannot take the event now. It is no fault of this application, so the error tracker is not informed."""

    def __init__(self, reason: str, *, status: int | None = None, retry_after_s: float | None = None) -> None:
        self.status = status
        self.retry_after_s = retry_after_s
        super().__init__(reason)


class RefusedError(BusinessError):
    """The receiver refuses the message, or may not be called: a retry would end the same way."""

    def __init__(self, reason: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(reason)


class GoneError(RefusedError):
    """The receiver says that it is gone for good (410)."""


async def attempt(message: Message) -> Answer:
    """Deliver the message, and return the receiver's answer.

    Raises ``TryAgainError`` for what may pass (no answer, overload, the receiver's own errors), ``GoneError``, and ``RefusedError``
    for every other answer: a redirect or a 404 shows the owner of the hook that the URL needs a correction.
    """
    now = time.time()
    body = json.dumps({"type": message.name, "data": message.payload}, separators=(",", ":")).encode()
    try:
        answer = await post(message.url, body, _signed(message, body, int(now)), now=now)
    except AddressRefusedError as error:
        raise RefusedError(str(error)) from error
    except NoAnswerError as error:
        raise TryAgainError(str(error)) from error
    if 200 <= answer.status < 300:
        return answer
    raise _refusal(answer)


def _refusal(answer: Answer) -> TryAgainError | RefusedError:
    status = answer.status
    if status == GONE:
        return GoneError("the receiver says it is gone", status=status)
    if status in _TRY_AGAIN or status >= 500:
        return TryAgainError(f"the receiver answered {status}", status=status, retry_after_s=answer.retry_after_s)
    if 300 <= status < 400 and answer.location:
        return RefusedError(f"the receiver redirects to {answer.location[:200]}: set that URL", status=status)
    return RefusedError(f"the receiver answered {status}", status=status)


def _signed(message: Message, body: bytes, timestamp: int) -> dict[str, str]:
    signed = f"{message.message_id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.digest(message.secret.encode(), signed, hashlib.sha256)).decode()
    return {
        "webhook-id": message.message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
