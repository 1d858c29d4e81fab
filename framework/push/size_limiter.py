"""GitLab's size limiter: large arguments are compressed, too large ones refused or tracked. One judge for every way of pushing."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.telemetry import logs
from framework.telemetry.rate_limit import LogRateLimit
from framework.telemetry.sentry import LazyTracker, NoTracker, Tracker
from framework.types import Json, Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, deflate_arguments
from framework.wire.footprint import DECODED_LIMIT, DECODED_LIMIT_SETTING, MAX_MEMORY_PER_BYTE, footprint_of, may_exceed
from framework.wire.json import dumps

SIZE_LIMITER = "size_limiter"
# The mark keeps a Ruby poller with smaller limits from compressing or refusing the job again. Small jobs need none.
VALIDATED, TRACKED = "validated", "tracked"
"""What a payload says that was looked at. GitLab's limiter leaves a job alone that says either."""

LOG_INTERVAL_S = 60.0
"""At most one report per class in this time."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Sizes are bytes of the arguments' JSON: compressed from ``compression_threshold`` on, refused above ``limit``."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: int = 100_000
    limit: int = 5_000_000
    """0 = no limit."""
    decompressed_limit: int = 100_000_000
    """What no run would inflate is not deflated either."""
    uncompressed_queues: tuple[str, ...] = ()
    """Patterns (``*``, ``?``) of the queues whose jobs are not compressed: processes serve them that cannot decompress."""
    decoded_limit: int = DECODED_LIMIT
    """Bytes of memory: what no run would decode is not pushed."""


class EncodedArguments(NamedTuple):
    """Large arguments as they are stored: the one text that stands for them, ``None`` for as they are; and the marks."""

    text: bytes | None
    marker_fields: dict[str, Json]


class SizeLimiter:
    """Judges arguments by their size. Shared between threads.

    In the mode ``track``, ``report`` is told of what ``compress`` would have refused, and the job is accepted.
    """

    def __init__(self, limits: SizeLimits, report: Callable[[ExceedLimitError], None]) -> None:
        self.limits = limits
        threshold = limits.compression_threshold
        self.raw_size_limit = min(threshold, limits.limit or threshold, limits.decoded_limit // MAX_MEMORY_PER_BYTE)
        """Arguments of fewer bytes are stored as they are, without marks."""
        self._report = report

    def encode_arguments(
        self, worker: str, queue: str, arguments: bytes, *, big_payload: bool, compress: bool = True
    ) -> EncodedArguments:
        """Return how arguments of ``unquestioned`` bytes of JSON or more are stored by a push to ``queue``.

        ``big_payload`` and ``compress`` are the attributes of the class.

        Raises:
            ExceedLimitError: mode is ``compress``, and they are too large even so and the class is no ``big_payload``, or
                larger than what a run would inflate; in both modes, that no run would decode them.
        """
        limits, size, text = self.limits, len(arguments), None
        if may_exceed(size, limits.decoded_limit):
            self._check_decoded_size(worker, arguments)
        marks: dict[str, Json] = {SIZE_LIMITER: VALIDATED}
        uncompressed = self._compression_exemption(queue, compress=compress)
        if uncompressed is None and limits.mode == "compress" and size >= limits.compression_threshold:
            if size > limits.decompressed_limit:
                raise ExceedLimitError(worker, size, limits.decompressed_limit, setting="size_limit.decompressed_limit")
            text = deflate_arguments(arguments)
            deflated_size = len(text) + 4  # its two quotes, two brackets
            # Base64 takes a third more: what does not deflate (an image, a cipher) may fit as it is, and only so.
            if limits.limit and deflated_size > limits.limit >= size:
                return EncodedArguments(None, marks)
            marks, size = {COMPRESSED: True, ORIGINAL_SIZE: size, **marks}, deflated_size
        if limits.limit and size > limits.limit and not big_payload:
            error = ExceedLimitError(worker, size, limits.limit, uncompressed=uncompressed)
            if limits.mode == "compress":
                raise error
            self._report(error)
            marks[SIZE_LIMITER] = TRACKED
        return EncodedArguments(text, marks)

    def _check_decoded_size(self, worker: str, arguments: bytes) -> None:
        memory = footprint_of(arguments).memory
        if memory > self.limits.decoded_limit:
            raise ExceedLimitError(worker, memory, self.limits.decoded_limit, setting=DECODED_LIMIT_SETTING)

    def _compression_exemption(self, queue: str, *, compress: bool) -> str | None:
        """Return what leaves the arguments of a job for ``queue`` uncompressed, for messages; ``None``: nothing does."""
        if not compress:
            return "attribute: compress = False"
        if any(fnmatchcase(queue, pattern) for pattern in self.limits.uncompressed_queues):
            return "setting: size_limit.uncompressed_queues"
        return None

    def limit_payload(self, payload: Payload, arguments: bytes, *, big_payload: bool, compress: bool = True) -> None:
        """Make the payload's arguments, ``arguments`` as JSON, what is stored, with marks that say so; raises as ``stored``."""
        for mark in (COMPRESSED, ORIGINAL_SIZE, SIZE_LIMITER):
            payload.pop(mark, None)
        if len(arguments) < self.raw_size_limit:
            return
        worker, queue = str(payload.get("class")), str(payload.get("queue"))
        text, marks = self.encode_arguments(worker, queue, arguments, big_payload=big_payload, compress=compress)
        if text is not None:
            payload["args"] = [text.decode("ascii")]
        payload.update(marks)

    def encode(self, payload: Payload, *, big_payload: bool, compress: bool = True) -> bytes:
        """Return the payload's bytes within the limits; ``payload`` itself is not changed. Raises as ``stored``, and

        Raises:
            ArgumentsError: it cannot be JSON (a middleware put something else in).
        """
        try:
            data = dumps(payload)
            if len(data) < self.raw_size_limit or payload.get(COMPRESSED):
                return data
            arguments = dumps(payload["args"])
            if len(arguments) < self.raw_size_limit:
                return data
            limited = dict(payload)
            self.limit_payload(limited, arguments, big_payload=big_payload, compress=compress)
            return dumps(limited)
        except PayloadError as error:
            raise ArgumentsError(str(payload.get("class")), f"refused: {error.reason}") from error


class OversizeReporter:
    """Tells of jobs that the mode ``compress`` would have refused: a line, and the error tracker where there is one (GitLab)."""

    def __init__(
        self, tracker: Callable[[], Tracker] = NoTracker, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._tracker = LazyTracker(tracker)
        self._log_limit = LogRateLimit(LOG_INTERVAL_S, monotonic)

    def __call__(self, error: ExceedLimitError) -> None:
        """Tell of one job, unless its class had a report a moment ago."""
        name = error.worker_class
        count = self._log_limit.hit(name)
        if not count:
            return
        tags = {"class": name}
        logs.logger(**tags).warning(
            "arguments exceed the size limit; the mode track lets them pass",
            event_name="payload.oversize",
            size=error.size,
            size_limit=error.size_limit,
            suppressed=count - 1,
        )
        self._tracker.capture(error, tags, name, on_failure="a tracked payload could not be reported")
