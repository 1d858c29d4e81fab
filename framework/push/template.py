"""Build payload bytes from a part computed once per class and options and the few values of each job.

The result equals the output of ``Normalizer`` and ``SizeLimiter.encode``, which pushes with client middlewares use. Tests
prove that both agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from framework.declare.declaration import Declaration
from framework.errors import ArgumentsError, PayloadError
from framework.push.normalize import class_fields, option_fields
from framework.push.size_limiter import SizeLimiter
from framework.telemetry.context import CORRELATION_ID
from framework.types import Json
from framework.wire.json import dumps


class JobTemplate:
    """Encode the payloads of jobs of one class for one queue with the same options."""

    __slots__ = ("_big_payload", "_compress", "_head", "_limiter", "_wire_name", "queue", "raw_size_limit")

    def __init__(self, declaration: Declaration, queue: str, options: Mapping[str, Any], limiter: SizeLimiter) -> None:
        self.queue = queue
        self.raw_size_limit = limiter.raw_size_limit
        """Arguments of at least this many bytes must pass ``fit_to_limit`` first."""
        self._limiter = limiter
        self._big_payload = declaration.big_payload
        self._compress = declaration.compress
        self._wire_name = declaration.wire_name
        fields = class_fields(declaration) | {"queue": queue} | option_fields(options)
        del fields["args"]
        self._head = self._json(fields)[:-1] + b',"args":'

    def fit_to_limit(self, args: bytes) -> bytes:
        """Return arguments within the size limits; large ones in stored form, followed by their marker fields.

        Raises:
            ExceedLimitError: the arguments are too large, even compressed.
        """
        if len(args) < self.raw_size_limit:
            return args
        text, marker_fields = self._limiter.encode_arguments(
            self._wire_name, self.queue, args, big_payload=self._big_payload, compress=self._compress
        )
        return b"%b,%b" % (args if text is None else b'["%b"]' % text, dumps(marker_fields)[1:-1])

    def encode(self, args: bytes, jid: bytes, now: bytes, context: Mapping[str, Json], *, scheduled: bool) -> bytes:
        """Return a payload. ``args`` is JSON within the limits, ``now`` a time as JSON; a ``scheduled`` job enters no queue now.

        Raises:
            ArgumentsError: the context is not JSON.
        """
        tail = self._tail(now, context, scheduled=scheduled)
        if CORRELATION_ID in context:
            return b'%b%b,"jid":"%b"%b}' % (self._head, args, jid, tail)
        return b'%b%b,"jid":"%b","correlation_id":"%b"%b}' % (self._head, args, jid, jid, tail)

    def encode_many(
        self, args: Sequence[bytes], jids: Sequence[bytes], now: bytes, context: Mapping[str, Json], *, scheduled: bool
    ) -> list[bytes]:
        """Return the payloads of jobs with a common context. Equals one call of ``encode`` per job."""
        # One %-format per job is the fastest way to build a thousand payloads; literal percent signs are doubled first.
        head, tail = _escape_percent(self._head), _escape_percent(self._tail(now, context, scheduled=scheduled))
        if CORRELATION_ID in context:
            form = b'%b%%b,"jid":"%%b"%b}' % (head, tail)
            return [form % (one, jid) for one, jid in zip(args, jids, strict=True)]
        form = b'%b%%b,"jid":"%%b","correlation_id":"%%b"%b}' % (head, tail)
        return [form % (one, jid, jid) for one, jid in zip(args, jids, strict=True)]

    def _tail(self, now: bytes, context: Mapping[str, Json], *, scheduled: bool) -> bytes:
        """Return the fields that do not depend on the job's id: times and context."""
        times = b',"created_at":%b' % now if scheduled else b',"created_at":%b,"enqueued_at":%b' % (now, now)
        return times + b"," + self._json(context)[1:-1] if context else times

    def _json(self, fields: Mapping[str, Any]) -> bytes:
        try:
            return dumps(fields)
        except PayloadError as error:
            raise ArgumentsError(self._wire_name, f"refused: {error.reason}") from error


def _escape_percent(text: bytes) -> bytes:
    return text.replace(b"%", b"%%")
