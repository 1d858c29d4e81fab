"""Sign payloads with HMAC under versioned keys, and check the signatures before a job runs."""

from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from framework.errors import MissingKeyError, PayloadError
from framework.features.encryption.key_versions import KeyVersions, SignatureFault, SigningKeys, matches_any
from framework.features.encryption.settings import SignatureSection
from framework.telemetry.context import CORRELATION_ID, META_PREFIX
from framework.telemetry.logs import LogRateLimit
from framework.types import Payload
from framework.wire.compress import COMPRESSED, ORIGINAL_SIZE
from framework.wire.job import PROFILE, TASK, TASK_ITEMS, TIMEOUT, TRACK
from framework.wire.json import dumps_parsed
from framework.wire.protected import ENCRYPTED, ENCRYPTION_KEY, OFFLOADED, SIGNATURE

_SIGNED_FIELDS = (
    *("class", "jid", "version", "args", COMPRESSED, ORIGINAL_SIZE, ENCRYPTED, ENCRYPTION_KEY),
    # With it the arguments are an id with the digest of the blob.
    OFFLOADED,
    *("retry", "retry_for", "dead", "backtrace", "tags", "status_expiration", TIMEOUT, PROFILE),
    # Of batches, results and cron. The order is a part of what is signed.
    *(TRACK, TASK, TASK_ITEMS, "bid", "aw_kept", "aw_batch_event", "aw_result", "cron", CORRELATION_ID),
)
"""Fields that no move of a job changes, and that decide what runs, how, and for whom."""

_LOG_INTERVAL_S = 60.0
_OPTIONS = ":"
"""Stands between a signature and the names of the application's options that it covers."""


class _Verified(str):
    __slots__ = ()


_VERIFIED = _Verified("verified")
"""Takes the place of a checked signature in a running payload. It is recognized by identity, so that no payload can claim it."""


def _no_options() -> Collection[str]:
    return ()


class PayloadSignatures:
    """Sign and check payloads. Safe from any thread. Jobs of ``unsigned_queues`` (patterns) never need a signature."""

    def __init__(
        self,
        versions: KeyVersions,
        *,
        required: bool = False,
        unsigned_queues: Sequence[str] = (),
        option_fields: Callable[[], Collection[str]] = _no_options,
    ) -> None:
        """``option_fields`` returns the fields of the application's options, of which modules may declare more."""
        self._keys = SigningKeys(versions, "signature")
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._option_fields = option_fields
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def sign(self, payload: Payload) -> None:
        """Set the signature of a payload, in place of any other."""
        # By name: a process of another release may lack an option, and must still accept the job.
        options = sorted(field for field in self._option_fields() if field in payload)
        signature = self._keys.sign(_signed_content(payload, options))
        payload[SIGNATURE] = f"{signature}{_OPTIONS}{','.join(options)}" if options else signature

    def needs_signature(self, queue: str) -> bool:
        """Return whether a job from this queue must be signed."""
        return self._required and not matches_any(queue, self._unsigned_queues)

    def lacks(self, payload: Payload) -> bool:
        """Return whether a payload has no signature, although they are required: it comes from one of the ``unsigned_queues``."""
        return self._required and payload.get(SIGNATURE) is None

    def check(self, payload: Payload, queue: str) -> None:
        """Check the signature of a job from ``queue`` once; a checked payload is marked.

        Raises:
            PayloadError: the signature is wrong, or missing and required.
            MissingKeyError: this process lacks the key.
        """
        found = payload.get(SIGNATURE)
        if found is _VERIFIED:
            return
        if found is None:
            if self.needs_signature(queue):
                raise PayloadError(
                    "it has no signature, and the setting signatures.required asks for one: its writer has no key, or is not this "
                    "application"
                )
            return
        self._verify(payload, found)
        payload[SIGNATURE] = _VERIFIED

    def accepts(self, payload: Payload, queue: str) -> bool:
        """Return whether ``check`` would accept a job from ``queue``. Marks nothing, and logs nothing."""
        found = payload.get(SIGNATURE)
        if found is None:
            return not self.needs_signature(queue)
        return found is _VERIFIED or self._fault(payload, found) is None

    def is_valid(self, payload: Payload) -> bool:
        """Return whether a payload as it is stored has a right signature."""
        return self._fault(payload, payload.get(SIGNATURE)) is None

    def _verify(self, payload: Payload, found: object) -> None:
        fault = self._fault(payload, found)
        if fault is None:
            return
        if fault.key_missing:
            self._missing(payload, fault.reason)
        raise PayloadError(
            f"its signature {fault.reason}: what it covers was changed, such as its class, id or arguments"
        )

    def _fault(self, payload: Payload, found: object) -> SignatureFault | None:
        if not isinstance(found, str):
            return SignatureFault("is missing, or no text")
        signature, _, names = found.partition(_OPTIONS)
        options = names.split(",") if names else []
        fault = self._keys.fault(_signed_content(payload, options), signature)
        if fault is None and any(one in payload and one not in options for one in self._option_fields()):
            return SignatureFault("does not cover an option that it has")
        return fault

    def _missing(self, payload: Payload, reason: str) -> NoReturn:
        name = str(payload.get("class"))
        self._log_rate.error(
            f"{name} {reason}",
            f"jobs of {name} are deferred, because {reason}. Add the key to signatures.keys of every process that runs the class",
            "signature.key_missing",
            **{"class": name},
        )
        raise MissingKeyError("the job is signed", reason, "signatures.keys")


def payload_signatures(
    settings: SignatureSection, option_fields: Callable[[], Collection[str]]
) -> PayloadSignatures | None:
    """Return the signatures with the configured keys, ``None`` without keys."""
    if not settings.secrets:
        return None
    return PayloadSignatures(
        KeyVersions(settings.active, settings.secrets),
        required=settings.required,
        unsigned_queues=settings.unsigned_queues,
        option_fields=option_fields,
    )


def _signed_content(payload: Payload, options: Sequence[str]) -> bytes:
    """Return the covered fields as JSON: another writer's spaces, escapes and order change nothing."""
    # One list: each job pays for it.
    facts = sorted([name for name in payload if name.startswith(META_PREFIX)])
    return dumps_parsed(
        [*map(payload.get, _SIGNED_FIELDS), facts, options, *map(payload.get, facts), *map(payload.get, options)]
    )
