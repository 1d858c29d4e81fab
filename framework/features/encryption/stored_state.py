"""Sign stored state with the configured keys, and check it."""

from collections.abc import Sequence

from framework.errors import MissingKeyError, StateRefusedError
from framework.features.encryption.key_versions import KeyVersions, SigningKeys, matches_any
from framework.features.encryption.settings import SignatureSection
from framework.telemetry.logs import LogRateLimit
from framework.wire.json import dumps
from framework.wire.protected import UNSIGNED_STATE, StatePlace, StateSignatures

_LOG_INTERVAL_S = 60.0


class KeyedStateSignatures(StateSignatures):
    """Sign and check with keys. See ``StateSignatures``."""

    signs = True

    def __init__(self, versions: KeyVersions, *, required: bool = False, unsigned_queues: Sequence[str] = ()) -> None:
        self._keys = SigningKeys(versions, "stored state")
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def sign(self, place: StatePlace, data: bytes) -> str:
        return self._keys.sign(_content(place, data))

    def check(self, place: StatePlace, data: bytes, signature: str, *, queue: str = "") -> None:
        if not signature:
            if self._required and not matches_any(queue, self._unsigned_queues):
                self._refuse(place, "it has no signature, and the setting signatures.required asks for one")
            return
        fault = self._keys.fault(_content(place, data), signature)
        if fault is None:
            return
        if fault.key_missing:
            raise MissingKeyError(f"the {place.purpose} in {place.key} is signed", fault.reason, "signatures.keys")
        self._refuse(place, f"its signature {fault.reason}: it was changed, or moved from another place")

    def _refuse(self, place: StatePlace, reason: str) -> None:
        self._log_rate.error(
            f"{place.purpose} {place.key}",
            f"the {place.purpose} in {place.key} is not used: {reason}. Find the program that wrote it; the value is kept",
            "signature.state_refused",
            purpose=place.purpose,
            key=place.key,
            reason=reason,
        )
        raise StateRefusedError(place.purpose, place.key, reason)


def state_signatures(settings: SignatureSection) -> StateSignatures:
    """Return the signatures of stored state with the configured keys."""
    if not settings.secrets:
        return UNSIGNED_STATE
    return KeyedStateSignatures(
        KeyVersions(settings.active, settings.secrets),
        required=settings.required,
        unsigned_queues=settings.unsigned_queues,
    )


def _content(place: StatePlace, data: bytes) -> bytes:
    # JSON of one line: no value can continue it.
    return b"%b\n%b" % (dumps([place.purpose, place.key, *place.identity]), data)
