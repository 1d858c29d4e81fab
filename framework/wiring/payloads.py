"""Build what protects the stored payloads from the settings."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationProblem, EncryptionKeyError
from framework.execute.decoding import PayloadDecoder
from framework.execute.stats import RunningJobs
from framework.execute.verifying import VerifyingDecoder
from framework.payloads.encryption import ArgumentEncryption
from framework.payloads.key_versions import KeyVersions
from framework.payloads.protection import PayloadProtection
from framework.payloads.signatures import PayloadSignatures
from framework.push.edited_payloads import PayloadEdit, PayloadEdits
from framework.settings.key_versions import KeySettings, SignatureSettings
from framework.settings.model import Settings
from framework.wire.memory_budget import MemoryBudget


def open_encryption(settings: Settings) -> ArgumentEncryption | None:
    """Return the encryption with the configured keys, ``None`` without keys.

    Raises:
        ConfigurationError: the extra is not installed.
    """
    found = settings.encryption
    return _encryption_of(found.active, tuple(sorted(found.secrets.items()))) if found.secrets else None


@lru_cache(maxsize=8)
def _encryption_of(active: int, secrets: tuple[tuple[int, bytes], ...]) -> ArgumentEncryption:
    # Cached: client, processor and poller of one process share it, and its rate of log lines.
    encryption = ArgumentEncryption(KeyVersions(active, dict(secrets)))
    encryption.load()
    return encryption


def open_protection(settings: Settings) -> PayloadProtection:
    """Return what protects payloads. Raises ConfigurationError as ``open_encryption``."""
    return PayloadProtection(open_encryption(settings), open_signatures(settings.signatures))


def open_signatures(found: SignatureSettings) -> PayloadSignatures | None:
    """Return the signatures with the configured keys, ``None`` without keys."""
    if not found.secrets:
        return None
    versions = KeyVersions(found.active, found.secrets)
    return PayloadSignatures(versions, required=found.required, unsigned_queues=found.unsigned_queues)


def open_decoder(settings: Settings, running_jobs: RunningJobs, budget: MemoryBudget | None = None) -> PayloadDecoder:
    """Return the decoder of a process's jobs. Raises ConfigurationError as ``open_encryption``."""
    sizes, (encryption, signatures) = settings.size_limit, open_protection(settings)
    limits = sizes.decompressed_limit, sizes.decoded_limit
    if signatures is None:
        return PayloadDecoder(running_jobs, *limits, budget, encryption)
    return VerifyingDecoder(running_jobs, *limits, budget, encryption, signatures)


def payload_edits(protection: PayloadProtection) -> PayloadEdits:
    """Return the changes of payloads before they are written."""
    encryption, signatures = protection

    def edits_of(declaration: Declaration) -> Sequence[PayloadEdit]:
        # Signed last: the signature covers the encrypted arguments.
        signing = () if signatures is None else (signatures.sign,)
        if not declaration.encrypt:
            return signing
        if encryption is None:
            raise EncryptionKeyError(declaration.wire_name)
        return (encryption.encrypt, encryption.replace_lock_key, *signing)

    return edits_of


def key_problems(keys: KeySettings, file: str, declarations: Iterable[Declaration]) -> list[ConfigurationProblem]:
    """Return a problem for each class that encrypts, if there is no key."""
    if keys.secrets:
        return []
    message = "{} declares `encrypt = True`: set encryption.keys, which `application-worker encryption new-key` makes"
    return [
        ConfigurationProblem(file, "encryption.keys", message.format(one.wire_name))
        for one in declarations
        if one.encrypt
    ]
