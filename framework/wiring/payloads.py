"""Build what protects the stored payloads from the settings."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from framework.declare.declaration import Declaration
from framework.errors import ConfigurationProblem, EncryptionKeyError
from framework.payloads.encryption import ArgumentEncryption, KeyVersions
from framework.push.edited_payloads import PayloadEdit, PayloadEdits
from framework.settings.key_versions import KeySettings
from framework.settings.model import Settings


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


def payload_edits(encryption: ArgumentEncryption | None) -> PayloadEdits:
    """Return the changes of payloads before they are written."""

    def edits_of(declaration: Declaration) -> Sequence[PayloadEdit]:
        if not declaration.encrypt:
            return ()
        if encryption is None:
            raise EncryptionKeyError(declaration.wire_name)
        return encryption.encrypt, encryption.replace_lock_key

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
