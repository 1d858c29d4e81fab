"""Keep the large arguments of faked jobs in memory, with the configured threshold."""

import time
from collections.abc import Iterator

from framework.all_settings import Settings
from framework.execute.decoding import PayloadDecoder
from framework.execute.stats import RunningJobs
from framework.payloads.blob_store import StoredBlob
from framework.payloads.encryption import ArgumentEncryption
from framework.payloads.offload import PayloadOffload
from framework.payloads.protection import PayloadProtection
from framework.wiring.payloads import open_encryption


class MemoryStore:
    """See ``BlobStore``."""

    can_vanish = False

    def __init__(self) -> None:
        self._blobs: dict[str, tuple[bytes, float]] = {}

    def put(self, name: str, data: bytes) -> None:
        """See ``BlobStore``."""
        self._blobs[name] = data, time.time()

    def get(self, name: str) -> bytes | None:
        """See ``BlobStore``."""
        found = self._blobs.get(name)
        return None if found is None else found[0]

    def delete(self, name: str) -> None:
        """See ``BlobStore``."""
        self._blobs.pop(name, None)

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        """See ``BlobStore``."""
        for name, (data, modified) in sorted(self._blobs.items()):
            if name.startswith(f"{prefix}/"):
                yield StoredBlob(name, len(data), modified)


def memory_protection(settings: Settings) -> PayloadProtection:
    """Return the protection of faked jobs: a test needs no key and no store, because what it pushes stays in its memory."""
    encryption = open_encryption(settings) or ArgumentEncryption.with_random_key()
    chosen = settings.payload_offload
    offload = None if chosen.url is None else PayloadOffload(MemoryStore(), "memory", chosen.threshold)
    return PayloadProtection(encryption, offload=offload)


def memory_decoder(settings: Settings, runs: RunningJobs, protection: PayloadProtection) -> PayloadDecoder:
    """Return the decoder of faked jobs."""
    sizes, offload = settings.size_limit, protection.offload
    delete_blob = None if offload is None else offload.delete
    reader = protection.reader
    return PayloadDecoder(runs, sizes.decompressed_limit, sizes.decoded_limit, None, reader, delete_blob)
