"""Keep the stored form of a payload valid when a step of the framework changes its fields."""

from typing import NamedTuple

from framework.errors import MissingKeyError, OffloadedArgumentsError, PayloadError, PayloadStoreError
from framework.payloads.encryption import ArgumentEncryption
from framework.payloads.offload import PayloadOffload
from framework.payloads.signatures import PayloadSignatures
from framework.types import Jid, Payload
from framework.wire.protected import OFFLOADED, ProtectedArguments, is_encrypted


class PayloadProtection(NamedTuple):
    """Hold what protects, and what stores, the payloads of a process."""

    encryption: ArgumentEncryption | None = None
    signatures: PayloadSignatures | None = None
    offload: PayloadOffload | None = None

    @property
    def reader(self) -> ProtectedArguments | None:
        """The reader of protected arguments; ``None`` if nothing is configured."""
        if self.offload is None:
            return self.encryption
        return OffloadedArguments(self.offload, self.encryption)

    def is_signed(self, payload: Payload) -> bool:
        """Return whether a payload as it is stored has a right signature: only such a job may get another one."""
        return self.signatures is not None and self.signatures.is_valid(payload)

    def sign(self, payload: Payload) -> None:
        """Sign a payload as it is stored; without keys do nothing."""
        if self.signatures is not None:
            self.signatures.sign(payload)

    def bind_to(self, payload: Payload, jid: Jid, *, sign: bool) -> None:
        """Give a job that has been read here another id. Both jobs may name the same blob.

        ``sign``: whether the job ``is_signed``, before any change.

        Encrypted arguments are bound to the id, so the other job gets a blob of its own. If the blob has vanished meanwhile, or was
        changed, the other job names it too: its run finds it missing, and goes to the dead set with its bytes.

        Raises:
            OSError: the payload store failed.
            MissingKeyError, PayloadError: as ``ArgumentEncryption.read``.
        """
        if self.encryption is not None and is_encrypted(payload):
            if self.offload is not None and OFFLOADED in payload:
                self._bind_offloaded(self.offload, self.encryption, payload, jid)
            else:
                self.encryption.bind_to(payload, jid)
        payload["jid"] = jid
        if sign:
            self.sign(payload)

    def protect(self, payload: Payload, *, sign: bool) -> None:
        """Encrypt, offload and sign changed arguments as those before were.

        Raises:
            PayloadStoreError: the payload store failed.
        """
        if self.encryption is not None and is_encrypted(payload):
            self.encryption.encrypt(payload)
        if self.offload is not None:
            self.offload.move_out(payload)
        if sign:
            self.sign(payload)

    def _bind_offloaded(
        self, offload: PayloadOffload, encryption: ArgumentEncryption, payload: Payload, jid: Jid
    ) -> None:
        try:
            offload.restore(payload)
        except OffloadedArgumentsError as error:
            raise OSError(str(error)) from error
        except PayloadError:
            # No run can read it: an error here would end the process, and its next one again.
            return
        try:
            encryption.bind_to(payload, jid)
            offload.move_out(payload)
        except PayloadStoreError as error:
            raise OSError(str(error)) from error


class OffloadedArguments:
    """Read the arguments of a job from the payload store, and decrypt them if they are encrypted."""

    def __init__(self, offload: PayloadOffload, encryption: ArgumentEncryption | None) -> None:
        self._offload = offload
        self._encryption = encryption

    def read(self, payload: Payload, text: str) -> bytes:
        """See ``ProtectedArguments``."""
        encryption = self._encryption
        if is_encrypted(payload) and encryption is None:
            raise MissingKeyError("the arguments are encrypted", "no key is configured here", "encryption.keys")
        if OFFLOADED not in payload:
            assert encryption is not None, "no other form is protected"  # noqa: S101
            return encryption.read(payload, text)
        stored = self._offload.fetch(payload, text)
        return encryption.decrypt(payload, stored) if encryption is not None and is_encrypted(payload) else stored


NO_PROTECTION = PayloadProtection()
