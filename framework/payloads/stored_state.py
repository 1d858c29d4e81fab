"""Sign what the framework stores in Redis beside payloads, and check it before it becomes a job, or decides about one.

A payload has a signature of its own (``signatures.py``). Everything else that a process reads back, and turns into a job, an
argument or a result, is signed by the process that writes it. A signature binds the bytes to their purpose, their key and their
identity, so that no value can be moved to another place. An older value of the same place keeps a right signature: with the key
alone no process can tell which one is the newest (docs/operate/threat_model.md).

Without keys nothing is signed, and nothing is checked.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from framework.errors import MissingKeyError, StateRefusedError
from framework.features.encryption.settings import SignatureSection
from framework.payloads.key_versions import KeyVersions
from framework.payloads.signing_keys import SigningKeys, matches_any
from framework.telemetry.rate_limit import LogRateLimit
from framework.types import Jid, Json
from framework.wire import keys
from framework.wire.json import dumps

StatePurpose: TypeAlias = Literal["cron entry", "cron order", "workflow", "step part", "task event", "cursor", "result"]
"""The kinds of signed state. ``docs/operate/threat_model.md`` lists each with its key."""

_LOG_INTERVAL_S = 60.0
_SEAL = re.compile(rb"\n(\d{1,9}\.[0-9a-f]{8}\.[0-9a-f]{64})\Z")


class StatePlace(NamedTuple):
    """Name the place of a stored value: what it is for, its key, and what identifies it there."""

    purpose: StatePurpose
    key: str
    identity: Sequence[Json] = ()


def result_place(jid: Jid) -> StatePlace:
    """Return the place of the answer of a job."""
    return StatePlace("result", keys.result(jid))


class StateSignatures:
    """Sign and check stored state. Safe from any thread."""

    def __init__(
        self, versions: KeyVersions | None = None, *, required: bool = False, unsigned_queues: Sequence[str] = ()
    ) -> None:
        """Without ``versions`` it signs nothing, and accepts everything."""
        self._keys = None if versions is None else SigningKeys(versions, "stored state")
        self._required = required
        self._unsigned_queues = unsigned_queues
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    @property
    def signs(self) -> bool:
        """Whether there are keys."""
        return self._keys is not None

    def sign(self, place: StatePlace, data: bytes) -> str:
        """Return the signature of a value at its place; empty without keys."""
        return "" if self._keys is None else self._keys.sign(_content(place, data))

    def check(self, place: StatePlace, data: bytes, signature: str, *, queue: str = "") -> None:
        """Check the signature of a value at its place; ``signature`` is empty if it has none.

        ``queue`` is that of the job whose state it is; it may be one of the ``unsigned_queues``.

        Raises:
            StateRefusedError: the signature is wrong, or missing and required. A log line tells.
            MissingKeyError: this process lacks the key.
        """
        if self._keys is None:
            return
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

    def seal(self, place: StatePlace, data: bytes) -> bytes:
        """Return the value with its signature behind a line feed; without keys the value itself."""
        return data if self._keys is None else b"%b\n%b" % (data, self.sign(place, data).encode())

    def open(self, place: StatePlace, sealed: bytes) -> bytes:
        """Return a value without its signature, which is checked. Raises as ``check``."""
        found = _SEAL.search(sealed)
        data = sealed if found is None else sealed[: found.start()]
        self.check(place, data, "" if found is None else found[1].decode())
        return data

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


UNSIGNED_STATE = StateSignatures()
"""Sign nothing, and accept everything: a process without keys, and the memory of a test."""


def state_signatures(settings: SignatureSection) -> StateSignatures:
    """Return the signatures of stored state with the configured keys."""
    if not settings.secrets:
        return UNSIGNED_STATE
    return StateSignatures(
        KeyVersions(settings.active, settings.secrets),
        required=settings.required,
        unsigned_queues=settings.unsigned_queues,
    )


def _content(place: StatePlace, data: bytes) -> bytes:
    # JSON of one line: no value can continue it.
    return b"%b\n%b" % (dumps([place.purpose, place.key, *place.identity]), data)
