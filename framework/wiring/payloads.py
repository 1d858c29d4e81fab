"""Build what protects the stored payloads from the settings."""

from functools import lru_cache

from framework.all_settings import Settings
from framework.declare.declaration import Declaration
from framework.declare.job_option import application_fields
from framework.errors import EncryptionKeyError
from framework.execute.decoding import PayloadDecoder
from framework.execute.stats import RunningJobs
from framework.execute.verifying import VerifyingDecoder
from framework.features.encryption.settings import PayloadOffloadSection
from framework.payloads.encryption import ArgumentEncryption, encryption_of
from framework.payloads.folder_store import FolderStore
from framework.payloads.offload import PayloadOffload
from framework.payloads.protection import PayloadProtection
from framework.payloads.s3_store import S3Store
from framework.payloads.signatures import payload_signatures
from framework.push.edited_payloads import Edits, PayloadEdits
from framework.wire.memory_budget import MemoryBudget


def open_encryption(settings: Settings) -> ArgumentEncryption | None:
    """Return the encryption with the configured keys, ``None`` without keys.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    return encryption_of(settings.encryption) if settings.encryption.secrets else None


def open_protection(settings: Settings) -> PayloadProtection:
    """Return the object that protects payloads. Raises ConfigurationError as ``open_encryption``."""
    return PayloadProtection(
        open_encryption(settings), payload_signatures(settings.signatures, application_fields), open_offload(settings)
    )


def open_offload(settings: Settings) -> PayloadOffload | None:
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


def open_decoder(settings: Settings, running_jobs: RunningJobs, budget: MemoryBudget | None = None) -> PayloadDecoder:
    """Return the decoder of a process's jobs. Raises ConfigurationError as ``open_encryption``."""
    sizes, protection = settings.size_limit, open_protection(settings)
    limits = sizes.decompressed_limit, sizes.decoded_limit
    signatures, reader, offload = protection.signatures, protection.reader, protection.offload
    delete_blob = None if offload is None else offload.delete
    if signatures is None:
        return PayloadDecoder(running_jobs, *limits, budget, reader, delete_blob)
    return VerifyingDecoder(running_jobs, *limits, budget, reader, delete_blob, signatures=signatures)


def payload_edits(protection: PayloadProtection) -> PayloadEdits:
    """Return the changes of payloads before they are written."""
    encryption, signatures, offload = protection
    undo = None if offload is None else offload.delete_of

    def edits_of(declaration: Declaration) -> Edits:
        # Encryption comes first: the store has encrypted bytes only. Signing comes last: it covers the digest of the stored bytes.
        moving = () if offload is None else (offload.move_out,)
        signing = () if signatures is None else (signatures.sign,)
        if declaration.encrypt:
            if encryption is None:
                raise EncryptionKeyError(declaration.wire_name)
            return Edits((encryption.encrypt, encryption.replace_lock_key, *moving, *signing), 0, undo)
        return Edits((*moving, *signing), 0 if signing or offload is None else offload.threshold, undo)

    return edits_of
