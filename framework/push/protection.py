"""Protect payloads as they are stored: the steps of pushes and runs that a feature with keys or a payload store fills."""

from collections.abc import Callable, Sequence

from framework.declare.declaration import Declaration
from framework.errors import EncryptionKeyError, MissingKeyError
from framework.feature import features
from framework.push.edited_payloads import Edits
from framework.settings.base import SettingsBase
from framework.types import Jid, Json, Payload
from framework.wire.protected import UNSIGNED_STATE, ProtectedArguments, StateSignatures


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
    for feature in features():
        if feature.protection is not None:
            protection: PayloadProtection = feature.protection.load()(settings)
            return protection
    return NO_PROTECTION
