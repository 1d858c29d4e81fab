"""Protect payloads as they are stored: the steps of pushes and runs that a feature with keys or a payload store fills."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, DueTime
from framework.errors import ConfigurationError, ConfigurationProblem, EncryptionKeyError, MissingKeyError
from framework.feature import single_part
from framework.push.deduplication import Deduplication
from framework.push.job_batch import JobBatch, PayloadBuilder
from framework.settings.base import SettingsBase
from framework.types import Jid, Json, Payload
from framework.wire.json import dumps, loads
from framework.wire.protected import UNSIGNED_STATE, ProtectedArguments, StateSignatures
from framework.wire.resources import IDEMPOTENCY_KEY

PayloadEdit: TypeAlias = Callable[[Payload], None]
"""Changes a payload in place."""


class Edits(NamedTuple):
    """Hold the changes of a class's payloads, in their order."""

    steps: Sequence[PayloadEdit] = ()
    min_bytes: int = 0
    """No change concerns payloads of fewer bytes: they are not parsed."""
    undo: Callable[[bytes], None] | None = None
    """Called with the payload of a duplicate that was dropped: what was stored for it elsewhere goes."""


def check_accumulation(declaration: Declaration) -> None:
    """Refuse a class whose jobs get the arguments of others: Redis can neither sign nor encrypt them.

    Raises:
        ConfigurationError: the class accumulates arguments.
    """
    if declaration.deduplicate is not None and declaration.deduplicate.strategy == "accumulate":
        message = (
            f"{declaration.wire_name} declares Deduplicate('accumulate'), which does not fit signed or encrypted payloads: "
            "take 'debounce', or push to a class without them"
        )
        raise ConfigurationError([ConfigurationProblem("config/application.yml", "signatures.keys", message)])


class WrappedPayloads(ABC):
    """Build batches by another builder, and change each before it is written. Shared between threads."""

    def __init__(self, builder: PayloadBuilder) -> None:
        self._builder = builder

    @abstractmethod
    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        """Return the batches to write instead; one for a batch of one job."""

    def one(
        self, args: list[Any], due: DueTime | None, locks: Deduplication | None, extra: Mapping[str, Json]
    ) -> JobBatch | None:
        batch = self._builder.one(args, due, locks, extra)
        return None if batch is None else self._changed(batch)[0]

    def check_bulk(self, request: BulkRequest, locks: Deduplication | None) -> deque[Any]:
        return self._builder.check_bulk(request, locks)

    def chunk(
        self,
        arguments: Any,
        start: int,
        request: BulkRequest,
        first_due_at: float | None,
        locks: Deduplication | None,
        extra: Mapping[str, Json],
    ) -> tuple[int, Sequence[JobBatch]]:
        size, batches = self._builder.chunk(arguments, start, request, first_due_at, locks, extra)
        return size, [part for batch in batches for part in self._changed(batch)]


class EditedPayloads(WrappedPayloads):
    """Change the payloads of another builder. Shared between threads."""

    def __init__(self, builder: PayloadBuilder, edits: Edits) -> None:
        super().__init__(builder)
        self._edits, self._min_bytes = edits.steps, edits.min_bytes

    def _changed(self, batch: JobBatch) -> Sequence[JobBatch]:
        return (self._edited(batch),)

    def _edited(self, batch: JobBatch) -> JobBatch:
        if self._min_bytes and max(map(len, batch.payloads)) < self._min_bytes:
            return batch
        fields: list[Payload] = [loads(data, None) for data in batch.payloads]
        for payload in fields:
            for edit in self._edits:
                edit(payload)
        payloads = [dumps(payload) for payload in fields]
        if batch.unique is None:
            return batch._replace(payloads=payloads)
        lock_keys = [str(payload[IDEMPOTENCY_KEY]) for payload in fields]
        return batch._replace(payloads=payloads, unique=batch.unique._replace(payloads=payloads, lock_keys=lock_keys))


class PayloadProtection:
    """Do nothing to payloads: the protection of a process without keys and without a payload store. Safe from any thread."""

    signs: bool = False
    """Whether payloads are signed."""
    reader: ProtectedArguments | None = None
    """The reader of protected arguments; ``None`` if nothing is configured."""
    state: StateSignatures = UNSIGNED_STATE
    """The signatures of what is stored beside payloads."""
    delete_blob: Callable[[str], None] | None = None
    """Deletes the arguments that an ended job has outside of Redis, by their id."""

    # --- a push -------------------------------------------------------------------------------------------------------

    def edits(self, declaration: Declaration) -> Edits:
        """Return the changes of a class's payloads before they are written. Called once per class and set of options.

        Raises:
            EncryptionKeyError: the class encrypts, and there is no key.
        """
        del declaration
        return Edits()

    def sign(self, payload: Payload) -> None:
        """Sign a payload as it is stored; without keys do nothing."""

    def hide_lock_key(self, payload: Payload) -> None:
        """Replace the lock key of a job with encrypted arguments, if it has one. The new key does not show the arguments."""

    def discard(self, data: bytes) -> None:
        """Delete what the job with these bytes, which is stored nowhere, has outside of Redis."""

    # --- a run --------------------------------------------------------------------------------------------------------

    def check(self, payload: Payload, queue: str) -> None:
        """Check the signature of a job from ``queue`` once; a checked payload is marked.

        Raises:
            PayloadError: the signature is wrong, or missing and required.
            MissingKeyError: this process lacks the key.
        """

    def accepts(self, payload: Payload, queue: str) -> bool:
        """Return whether ``check`` would accept a job from ``queue``. Marks nothing, and logs nothing."""
        del payload, queue
        return True

    def lacks_signature(self, payload: Payload) -> bool:
        """Return whether a payload has no signature, although they are required."""
        del payload
        return False

    # --- a change of a stored job -------------------------------------------------------------------------------------

    def is_signed(self, payload: Payload) -> bool:
        """Return whether a payload as it is stored has a right signature: only such a job may get another one."""
        del payload
        return False

    def bind_to(self, payload: Payload, jid: Jid, *, sign: bool) -> None:
        """Give a job that has been read here another id. ``sign``: whether the job ``is_signed``, before any change.

        Raises:
            OSError: the payload store failed.
            MissingKeyError, PayloadError: as ``ProtectedArguments.read``.
        """
        del sign
        payload["jid"] = jid

    def protect(self, payload: Payload, *, sign: bool) -> None:
        """Encrypt, offload and sign changed arguments as those before were.

        Raises:
            PayloadStoreError: the payload store failed.
        """

    # --- other data than arguments ------------------------------------------------------------------------------------

    def seal(self, data: bytes, place: Sequence[Json], worker: str) -> str:
        """Return data of a class that encrypts as text, which can be read at its place alone.

        Raises:
            EncryptionKeyError: there is no key.
        """
        del data, place
        raise EncryptionKeyError(worker)

    def open(self, text: str, place: Sequence[Json]) -> bytes:
        """Return the data that ``seal`` has encrypted.

        Raises:
            PayloadError: it is damaged, or was taken from another place.
            MissingKeyError: this process lacks the key.
        """
        del text, place
        raise MissingKeyError("the arguments are encrypted", "no key is configured here", "encryption.keys")


NO_PROTECTION = PayloadProtection()


def open_protection(settings: SettingsBase) -> PayloadProtection:
    """Return what protects the payloads of a process with these settings. Opens no connection.

    Raises:
        ConfigurationError: an extra is not installed.
    """
    part = single_part("protection")
    protection: PayloadProtection = NO_PROTECTION if part is None else part.load()(settings)
    return protection
