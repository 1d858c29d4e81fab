"""Show one job of a queue or a set, whichever program wrote it: malformed payloads too."""

from functools import cached_property
from typing import Any, cast

from framework.errors import PayloadError
from framework.settings.size_limit import SizeLimitSettings
from framework.telemetry.context import META_PREFIX
from framework.text import decode_escaped
from framework.types import Payload
from framework.wire.compress import decompress_arguments, unpack_backtrace
from framework.wire.job import decode, timestamp, whole_number
from framework.wire.json import loads_object
from framework.wire.protected import ENCRYPTED, HIDDEN, hidden_arguments, is_protected

_ACTIVE_JOB_WRAPPERS = (
    "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
    "Sidekiq::ActiveJob::Wrapper",
)


class JobRecord:
    """A job as it is stored on a shard. No property raises for what another program wrote there.

    ``data`` are its bytes, by which an action finds it. ``problem`` says what is wrong with a malformed job, whose other
    properties are empty as far as they cannot be read.
    """

    def __init__(self, shard: str, data: bytes, sizes: SizeLimitSettings) -> None:
        self.shard = shard
        self.data = data
        self._sizes = sizes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.jid or '(no jid)'} {self.display_class or '(malformed)'} on {self.shard}>"

    @cached_property
    def payload(self) -> Payload:
        """The payload as it is stored, with compressed arguments; empty if it is no JSON object."""
        return loads_object(self.data, self._sizes.decoded_limit)

    @cached_property
    def problem(self) -> str | None:
        """The fault of the job, such as bytes that are no JSON, or damaged compressed arguments; else ``None``."""
        return self._decoded[1]

    @property
    def jid(self) -> str:
        """The job's id, empty if it has none."""
        return _text(self.payload.get("jid"))

    @property
    def worker(self) -> str:
        """The wire name of its class, empty if it has none."""
        return _text(self.payload.get("class"))

    @property
    def display_class(self) -> str:
        """The class that runs: for a job of Ruby's ActiveJob the wrapped one, else ``worker``."""
        return _text(self.payload.get("wrapped")) if self._is_wrapped and self.payload.get("wrapped") else self.worker

    @property
    def queue(self) -> str:
        """The name of the queue that it was written for, empty if it has none."""
        return _text(self.payload.get("queue"))

    @property
    def args(self) -> list[Any]:
        """The arguments, decompressed at the first use; as they are stored if they cannot be decompressed, or are encrypted."""
        return self._decoded[0]

    @property
    def display_args(self) -> list[Any]:
        """The arguments that the class receives: for a job of Ruby's ActiveJob those of the wrapped one, else ``args``.

        Encrypted arguments are hidden: all of them, or the last one of a job that Sidekiq Enterprise encrypts.
        """
        first: Any = self.args[0] if self._is_wrapped and self.args else None
        if isinstance(first, dict) and isinstance(cast("Payload", first).get("arguments"), list):
            return cast("list[Any]", first["arguments"])
        if is_protected(self.payload):
            return [hidden_arguments(self.payload)]
        return [*self.args[:-1], HIDDEN] if self.args and self.payload.get(ENCRYPTED) else self.args

    @property
    def created_at(self) -> float | None:
        """When it was pushed first, in epoch seconds."""
        return timestamp(self.payload.get("created_at"))

    @property
    def enqueued_at(self) -> float | None:
        """When it entered its queue last, in epoch seconds."""
        return timestamp(self.payload.get("enqueued_at"))

    @property
    def failed_at(self) -> float | None:
        """When it failed first, in epoch seconds; ``None`` if it has not failed."""
        return timestamp(self.payload.get("failed_at"))

    @property
    def retried_at(self) -> float | None:
        """When it failed last, in epoch seconds; ``None`` before its second failure."""
        return timestamp(self.payload.get("retried_at"))

    @property
    def retry_count(self) -> int | None:
        """The number of failures minus one; ``None`` before the first failure."""
        return whole_number(self.payload.get("retry_count"))

    @property
    def error_class(self) -> str:
        """The class of its last error, empty without one."""
        return _text(self.payload.get("error_class"))

    @property
    def error_message(self) -> str:
        """The message of its last error, empty without one."""
        return _text(self.payload.get("error_message"))

    @property
    def error_backtrace(self) -> list[str]:
        """The lines of its last error's traceback, as far as its class keeps them (``backtrace``)."""
        return unpack_backtrace(self.payload.get("error_backtrace"))

    @property
    def tags(self) -> list[str]:
        """Its tags."""
        found = self.payload.get("tags")
        return [_text(one) for one in cast("list[Any]", found)] if isinstance(found, list) else []

    @property
    def context(self) -> dict[str, Any]:
        """The facts about the request or job that pushed it: its fields ``meta.*`` without the prefix, such as ``user``."""
        return {
            name.removeprefix(META_PREFIX): value
            for name, value in self.payload.items()
            if name.startswith(META_PREFIX)
        }

    @property
    def text(self) -> str:
        """The stored bytes as text; bytes that are no UTF-8 as escapes."""
        return decode_escaped(self.data)

    @property
    def _is_wrapped(self) -> bool:
        return self.worker in _ACTIVE_JOB_WRAPPERS

    @cached_property
    def _decoded(self) -> tuple[list[Any], str | None]:
        stored = self.payload.get("args")
        raw = cast("list[Any]", stored) if isinstance(stored, list) else []
        try:
            fields = decode(self.data, self._sizes.decoded_limit)
            if is_protected(fields):
                return raw, None
            decompress_arguments(fields, self._sizes.decompressed_limit, self._sizes.decoded_limit)
        except PayloadError as error:
            return raw, error.reason
        return cast("list[Any]", fields["args"]), None


def _text(value: object) -> str:
    return "" if value is None else str(value)
