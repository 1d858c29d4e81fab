"""Protect the payloads of a process with the configured keys and the payload store, and find classes that encrypt without a key."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from framework.declare.declaration import Declaration
from framework.declare.options import application_fields
from framework.errors import (
    ConfigurationProblem,
    EncryptionKeyError,
    MissingKeyError,
    OffloadedArgumentsError,
    PayloadError,
    PayloadStoreError,
)
from framework.features.encryption.arguments import ArgumentEncryption, encryption_of
from framework.features.encryption.blob_store import FolderStore, S3Store
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.settings import EncryptionSettings, PayloadOffloadSection
from framework.features.encryption.signatures import PayloadSignatures, payload_signatures, state_signatures
from framework.push.protection import Edits, PayloadProtection
from framework.route.router import LoadedWorkers
from framework.settings.base import SettingsBase
from framework.types import Jid, Json, Payload
from framework.wire.protected import OFFLOADED, UNSIGNED_STATE, ProtectedArguments, StateSignatures, is_encrypted


class ConfiguredProtection(PayloadProtection):
    """Encrypt, offload and sign payloads with what is configured. See ``PayloadProtection``."""

    def __init__(
        self,
        encryption: ArgumentEncryption | None = None,
        signatures: PayloadSignatures | None = None,
        offload: PayloadOffload | None = None,
        state: StateSignatures = UNSIGNED_STATE,
    ) -> None:
        self._encryption = encryption
        self._signatures = signatures
        self._offload = offload
        self.state = state
        self.signs = signatures is not None
        self.reader: ProtectedArguments | None = (
            encryption if offload is None else OffloadedArguments(offload, encryption)
        )
        self.delete_blob = None if offload is None else offload.delete

    def edits(self, declaration: Declaration) -> Edits:
        encryption, signatures, offload = self._encryption, self._signatures, self._offload
        undo = None if offload is None else offload.delete_of
        # Encryption comes first: the store has encrypted bytes only. Signing comes last: it covers the digest of the stored bytes.
        moving = () if offload is None else (offload.move_out,)
        signing = () if signatures is None else (signatures.sign,)
        if declaration.encrypt:
            if encryption is None:
                raise EncryptionKeyError(declaration.wire_name)
            return Edits((encryption.encrypt, encryption.replace_lock_key, *moving, *signing), 0, undo)
        return Edits((*moving, *signing), 0 if signing or offload is None else offload.threshold, undo)

    def sign(self, payload: Payload) -> None:
        if self._signatures is not None:
            self._signatures.sign(payload)

    def hide_lock_key(self, payload: Payload) -> None:
        if self._encryption is not None:
            self._encryption.replace_lock_key(payload)

    def discard(self, data: bytes) -> None:
        if self._offload is not None:
            self._offload.delete_of(data)

    def check(self, payload: Payload, queue: str) -> None:
        if self._signatures is not None:
            self._signatures.check(payload, queue)

    def accepts(self, payload: Payload, queue: str) -> bool:
        return self._signatures is None or self._signatures.accepts(payload, queue)

    def lacks_signature(self, payload: Payload) -> bool:
        return self._signatures is not None and self._signatures.lacks(payload)

    def is_signed(self, payload: Payload) -> bool:
        return self._signatures is not None and self._signatures.is_valid(payload)

    def bind_to(self, payload: Payload, jid: Jid, *, sign: bool) -> None:
        """See ``PayloadProtection``. Both jobs may name the same blob.

        Encrypted arguments are bound to the id, so the other job gets a blob of its own. If the blob has vanished meanwhile, or was
        changed, the other job names it too: its run finds it missing, and goes to the dead set with its bytes.
        """
        if self._encryption is not None and is_encrypted(payload):
            if self._offload is not None and OFFLOADED in payload:
                self._bind_offloaded(self._offload, self._encryption, payload, jid)
            else:
                self._encryption.bind_to(payload, jid)
        payload["jid"] = jid
        if sign:
            self.sign(payload)

    def protect(self, payload: Payload, *, sign: bool) -> None:
        if self._encryption is not None and is_encrypted(payload):
            self._encryption.encrypt(payload)
        if self._offload is not None:
            self._offload.move_out(payload)
        if sign:
            self.sign(payload)

    def seal(self, data: bytes, place: Sequence[Json], worker: str) -> str:
        return super().seal(data, place, worker) if self._encryption is None else self._encryption.seal(data, place)

    def open(self, text: str, place: Sequence[Json]) -> bytes:
        return super().open(text, place) if self._encryption is None else self._encryption.open(text, place)

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
        encryption = self._encryption
        if is_encrypted(payload) and encryption is None:
            raise MissingKeyError("the arguments are encrypted", "no key is configured here", "encryption.keys")
        if OFFLOADED not in payload:
            assert encryption is not None, "no other form is protected"  # noqa: S101
            return encryption.read(payload, text)
        stored = self._offload.fetch(payload, text)
        return encryption.decrypt(payload, stored) if encryption is not None and is_encrypted(payload) else stored


def configured_protection(settings: SettingsBase) -> ConfiguredProtection:
    """Return the protection of a process with these settings.

    Raises:
        ConfigurationError: an extra is not installed.
    """
    chosen = EncryptionSettings.of(settings)
    return ConfiguredProtection(
        encryption_of(chosen.encryption),
        payload_signatures(chosen.signatures, application_fields),
        open_offload(chosen),
        state_signatures(chosen.signatures),
    )


def open_offload(settings: EncryptionSettings) -> PayloadOffload | None:
    """Return the object that stores large arguments, ``None`` without a store. Opens no connection.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    found = settings.payload_offload
    return None if found.url is None else _offload_to(found.url, found.threshold, made_before=settings.production)


@lru_cache(maxsize=8)
def _offload_to(url: str, threshold: int, *, made_before: bool) -> PayloadOffload:
    # Cached: client, processor and poller of one process share its connections, and its rate of log lines.
    found = PayloadOffloadSection(url=url, threshold=threshold)
    if found.folder is not None:
        return PayloadOffload(FolderStore(found.folder), url, threshold, made_before=made_before)
    bucket, prefix, endpoint, region = found.bucket
    store = S3Store(bucket, prefix, endpoint=endpoint, region=region)
    store.load()
    return PayloadOffload(store, url, threshold, made_before=made_before)


def key_problems(workers: LoadedWorkers) -> Iterator[ConfigurationProblem]:
    """Yield a problem for each class that encrypts, if there is no key."""
    settings = EncryptionSettings.of(workers.settings)
    if settings.encryption.secrets:
        return
    file = settings.config_file_label("application.yml")
    message = "{} declares `encrypt = True`: set encryption.keys, which `application-worker encryption new-key` makes"
    for one in workers.declarations:
        if one.encrypt:
            yield ConfigurationProblem(file, "encryption.keys", message.format(one.wire_name))
