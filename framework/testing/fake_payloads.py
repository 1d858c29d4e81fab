"""Keep the large arguments of faked jobs in memory, with the configured threshold."""

import time
from collections.abc import Iterator

from framework.all_settings import Settings
from framework.features.encryption.arguments import ArgumentEncryption, encryption_of
from framework.features.encryption.blob_store import StoredBlob
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.protection import ConfiguredProtection
from framework.push.protection import PayloadProtection


class KeptBlobs:
    """See ``BlobStore``."""

    can_vanish = False

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[bytes, float]] = {}

    def put(self, name: str, data: bytes) -> None:
        self._blobs[name] = data, time.time()

    def get(self, name: str) -> bytes | None:
        found = self._blobs.get(name)
        return None if found is None else found[0]

    def delete(self, name: str) -> None:
        self._blobs.pop(name, None)

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        for name, (data, modified) in sorted(self._blobs.items()):
            if name.startswith(f"{prefix}/"):
                yield StoredBlob(name, len(data), modified)


def fake_protection(settings: Settings) -> PayloadProtection:
    """Return the protection of faked jobs: a test needs no key and no store, because what it pushes stays in its memory."""
    encryption = encryption_of(settings.encryption) or ArgumentEncryption.with_random_key()
    chosen = settings.payload_offload
    offload = None if chosen.url is None else PayloadOffload(KeptBlobs(), "memory", chosen.threshold)
    return ConfiguredProtection(encryption, offload=offload)
