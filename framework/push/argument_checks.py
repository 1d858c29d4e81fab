"""Check the size of arguments, and refuse arguments that do not fit their annotations or convert them (Sidekiq's modes)."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal, NamedTuple

from framework.declare.declaration import Declaration
from framework.declare.signature import JobSignature
from framework.errors import ArgumentsError, ExceedLimitError, PayloadError
from framework.telemetry import logs
from framework.telemetry.logs import LogRateLimit
from framework.telemetry.sentry import LazyTracker, NoTracker
from framework.types import Jid, Json, Payload, StrictArguments
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE, deflate_arguments
from framework.wire.footprint import DECODED_LIMIT, DECODED_LIMIT_SETTING, MAX_MEMORY_PER_BYTE, footprint_of, may_exceed
from framework.wire.json import dumps

SIZE_LIMITER = "size_limiter"
# The mark keeps a Ruby poller with smaller limits from compressing or refusing the job again. Small jobs need none.
VALIDATED, TRACKED = "validated", "tracked"
"""Values of the field in a checked payload. GitLab's limiter skips payloads that carry either."""

LOG_INTERVAL_S = 60.0
"""At most one report per class in this time."""


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """Hold limits in bytes of JSON: compress from ``compression_threshold``, refuse above ``limit``."""

    mode: Literal["compress", "track"] = "compress"
    compression_threshold: int = 100_000
    limit: int = 5_000_000
    """0 = no limit."""
    decompressed_limit: int = 100_000_000
    """Larger arguments are refused instead of compressed, because no run would decompress them."""
    uncompressed_queues: tuple[str, ...] = ()
    """Patterns (``*``, ``?``) of queues whose jobs stay uncompressed, because their processes cannot decompress."""
    decoded_limit: int = DECODED_LIMIT
    """Bytes of memory after decoding. Larger arguments are refused, because no run would decode them."""
    offloads: bool = False
    """Whether compressed arguments of more bytes than ``limit`` are accepted, because they are stored outside of Redis."""


class EncodedArguments(NamedTuple):
    """Hold large arguments in stored form: the compressed text (``None`` if stored unchanged) and the fields that mark it."""

    text: bytes | None
    marker_fields: dict[str, Json]


class OversizeReporter:
    """Log and report to the error tracker the jobs that the mode ``compress`` would have refused (as GitLab does)."""

    def __init__(self, tracker: LazyTracker | None = None) -> None:
        self._tracker = tracker or LazyTracker(NoTracker)
        self._log_limit = LogRateLimit(LOG_INTERVAL_S)

    def report(self, error: ExceedLimitError) -> None:
        """Report one job, at most once a minute per class."""
        name = error.worker_class
        count = self._log_limit.hit(name)
        if not count:
            return
        tags = {"class": name}
        logs.logger(**tags).warning(
            "arguments exceed the size limit; the job was pushed, because size_limit.mode is track. Pass an id instead of the data",
            event_name="payload.oversize",
            size=error.size,
            size_limit=error.size_limit,
            suppressed=count - 1,
        )
        self._tracker.capture(error, tags, name, on_failure="an oversize payload could not be reported")


class SizeLimiter:
    """Check and compress arguments by size. Shared between threads.

    In the mode ``track``, the reporter gets the error that ``compress`` would raise, and the job is accepted.
    """

    def __init__(self, limits: SizeLimits, reporter: OversizeReporter) -> None:
        self.limits = limits
        threshold = limits.compression_threshold
        self.raw_size_limit = min(threshold, limits.limit or threshold, limits.decoded_limit // MAX_MEMORY_PER_BYTE)
        """Arguments of fewer bytes are stored unchanged, without marker fields."""
        self._reporter = reporter

    def encode_arguments(
        self, worker: str, queue: str, arguments: bytes, *, big_payload: bool, compress: bool = True
    ) -> EncodedArguments:
        """Return the stored form of arguments of at least ``raw_size_limit`` bytes of JSON for a push to ``queue``.

        ``big_payload`` and ``compress`` are the attributes of the class.

        Raises:
            ExceedLimitError: in both modes, no run would decode them. In the mode ``compress``, they are above the limit even
                compressed and the class has no ``big_payload``, or no run would decompress them.
        """
        limits, size, text = self.limits, len(arguments), None
        if may_exceed(size, limits.decoded_limit):
            self._check_decoded_size(worker, arguments)
        marker_fields: dict[str, Json] = {SIZE_LIMITER: VALIDATED}
        uncompressed = self._compression_exemption(queue, compress=compress)
        if uncompressed is None and limits.mode == "compress" and size >= limits.compression_threshold:
            if size > limits.decompressed_limit:
                raise ExceedLimitError(worker, size, limits.decompressed_limit, setting="size_limit.decompressed_limit")
            text = deflate_arguments(arguments)
            # Two quotes and two brackets are added.
            deflated_size = len(text) + 4
            # Base64 adds a third: incompressible arguments (an image, a cipher text) may fit only uncompressed.
            if limits.limit and deflated_size > limits.limit >= size and not limits.offloads:
                return EncodedArguments(None, marker_fields)
            marker_fields, size = {COMPRESSED: True, ORIGINAL_SIZE: size, **marker_fields}, deflated_size
        offloaded = limits.offloads and text is not None
        if limits.limit and size > limits.limit and not (big_payload or offloaded):
            error = ExceedLimitError(worker, size, limits.limit, uncompressed=uncompressed)
            if limits.mode == "compress":
                raise error
            self._reporter.report(error)
            marker_fields[SIZE_LIMITER] = TRACKED
        return EncodedArguments(text, marker_fields)

    def _check_decoded_size(self, worker: str, arguments: bytes) -> None:
        memory = footprint_of(arguments).memory
        if memory > self.limits.decoded_limit:
            raise ExceedLimitError(worker, memory, self.limits.decoded_limit, setting=DECODED_LIMIT_SETTING)

    def _compression_exemption(self, queue: str, *, compress: bool) -> str | None:
        """Return the attribute or setting that exempts a job for ``queue`` from compression, for messages; ``None`` if none does."""
        if not compress:
            return "attribute: compress = False"
        if any(fnmatchcase(queue, pattern) for pattern in self.limits.uncompressed_queues):
            return "setting: size_limit.uncompressed_queues"
        return None

    def limit_payload(self, payload: Payload, arguments: bytes, *, big_payload: bool, compress: bool = True) -> None:
        """Replace the payload's arguments by their stored form and set its marker fields. Raises as ``encode_arguments``.

        ``arguments`` are the payload's arguments as JSON.
        """
        for field in (COMPRESSED, ORIGINAL_SIZE, SIZE_LIMITER):
            payload.pop(field, None)
        if len(arguments) < self.raw_size_limit:
            return
        worker, queue = str(payload.get("class")), str(payload.get("queue"))
        text, marker_fields = self.encode_arguments(
            worker, queue, arguments, big_payload=big_payload, compress=compress
        )
        if text is not None:
            payload["args"] = [text.decode("ascii")]
        payload.update(marker_fields)

    def encode(self, payload: Payload, *, big_payload: bool, compress: bool = True) -> bytes:
        """Return the payload's bytes within the limits, without changing ``payload``.

        Raises:
            ArgumentsError: the payload cannot be JSON, because a middleware added a value that JSON cannot carry.
            ExceedLimitError: as ``encode_arguments``.
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


_MAX_SHOWN = 20
"""The most arguments named in one warning: ``*args`` may be any number."""

_PUSH_MESSAGE = "arguments are not strict: their JSON values are pushed. Correct the call or the annotations."
_RUN_MESSAGE = (
    "a job's arguments do not fit {}: the job runs with them unchanged. Correct the caller or the annotations."
)


class StrictArgumentsCheck:
    """Apply the mode of the class's ``strict_arguments``, or ``setting`` where it is ``None``. Shared between threads.

    Called only for arguments that were refused: a push with strict arguments has no cost.
    """

    def __init__(self, setting: StrictArguments = "raise") -> None:
        self._setting: StrictArguments = setting
        self._log_limit = LogRateLimit(LOG_INTERVAL_S)

    def checked(self, declaration: Declaration, args: list[Any]) -> list[Any]:
        """Return the arguments of a push, or their JSON values if they are not strict and the class's mode allows it.

        Raises:
            ArgumentsError: they are refused.
        """
        try:
            declaration.signature.check(args)
        except ArgumentsError as error:
            return self.coerce(declaration, args, error)
        return args

    def coerce(self, declaration: Declaration, args: list[Any], error: ArgumentsError) -> list[Any]:
        """Return the JSON values of a push's arguments that were refused with ``error``, if the class's mode allows it.

        Raises:
            ArgumentsError: ``error`` in the mode ``raise``; another error if JSON cannot carry the arguments.
        """
        coercer = self.coercer(declaration)
        if coercer is None:
            raise error
        values = coercer(args)
        coercer.log_complaints()
        return values

    def coercer(self, declaration: Declaration) -> "ArgumentCoercer | None":
        """Return the coercer for the arguments of one bulk push; ``None`` in the mode ``raise``."""
        mode = self._mode(declaration)
        return None if mode == "raise" else ArgumentCoercer(self, declaration, warns=mode == "warn")

    def allows_run(self, declaration: Declaration, signature: JobSignature, args: list[Any], jid: Jid) -> bool:
        """Return whether a job runs with arguments that were refused: their count is right and the mode is not ``raise``.

        ``signature`` is the signature of the method that runs the job.
        """
        mode = self._mode(declaration)
        if mode == "raise":
            return False
        try:
            signature.check_count(args)
        except ArgumentsError:
            return False
        if mode == "warn":
            self.warn(
                declaration, _RUN_MESSAGE.format(signature.method), signature.strictness_problems(args, args), jid=jid
            )
        return True

    def warn(self, declaration: Declaration, message: str, complaints: dict[str, str], **facts: Any) -> None:
        """Write a line, unless the class had one a moment ago: names and reasons, never values."""
        count = self._log_limit.hit(declaration.wire_name)
        if count:
            logs.logger(**{"class": declaration.wire_name}).warning(
                message,
                event_name="arguments.not_strict",
                arguments=dict(islice(complaints.items(), _MAX_SHOWN)),
                suppressed=count - 1,
                **facts,
            )

    def _mode(self, declaration: Declaration) -> StrictArguments:
        mode = declaration.strict_arguments
        return self._setting if mode is None else mode


class ArgumentCoercer:
    """Convert the arguments of one push to JSON values and collect the reasons."""

    def __init__(self, check: StrictArgumentsCheck, declaration: Declaration, *, warns: bool) -> None:
        self._check = check
        self._declaration = declaration
        self._warns = warns
        self._complaints: dict[str, str] = {}
        self._jobs = 0

    def __call__(self, args: list[Any]) -> list[Any]:
        """Return the JSON values.

        Raises:
            ArgumentsError: the number of arguments is wrong, or JSON cannot carry one of them.
        """
        signature = self._declaration.signature
        form = signature.to_json_values(args)
        if self._warns:
            self._jobs += 1
            self._complaints = {**signature.strictness_problems(args, form), **self._complaints}
        return form

    def log_complaints(self) -> None:
        """Log one warning for the push if the mode is ``warn`` and there are complaints."""
        if self._complaints:
            self._check.warn(self._declaration, _PUSH_MESSAGE, self._complaints, jobs=self._jobs)
