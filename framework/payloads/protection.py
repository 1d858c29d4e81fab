"""Keep the protection of a payload when a step of the framework changes what is protected."""

from typing import NamedTuple

from framework.payloads.encryption import ArgumentEncryption
from framework.payloads.signatures import PayloadSignatures
from framework.types import Jid, Payload
from framework.wire.protected import SIGNATURE, is_encrypted


class PayloadProtection(NamedTuple):
    """Hold what protects the payloads of a process."""

    encryption: ArgumentEncryption | None = None
    signatures: PayloadSignatures | None = None

    def bind_to(self, payload: Payload, jid: Jid) -> None:
        """Give a job that has been read here another id.

        Raises as ``ArgumentEncryption.read``.
        """
        if self.encryption is not None and is_encrypted(payload):
            self.encryption.bind_to(payload, jid)
        payload["jid"] = jid
        if self.signatures is not None and SIGNATURE in payload:
            self.signatures.sign(payload)


NO_PROTECTION = PayloadProtection()
