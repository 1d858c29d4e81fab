"""Store large arguments outside of Redis, and read them before the job runs.

The blob holds the compressed arguments, encrypted if the class encrypts. The payload names the blob. At a crash: the
blob is durable before its job is pushed, and is deleted after the job was acknowledged. A death in between leaves a blob that no job
names, which the sweep deletes.
"""

import base64
import binascii
import hashlib
import os
import re
from typing import NoReturn

from framework.command_line import command
from framework.errors import OffloadedArgumentsError, PayloadError, PayloadStoreError
from framework.features.encryption.blob_store import BlobStore
from framework.settings.urls import shown_url
from framework.telemetry.logs import LogRateLimit
from framework.text import Sentence
from framework.types import Payload
from framework.wire.compress import COMPRESSED
from framework.wire.json import loads_object
from framework.wire.protected import OFFLOADED

BLOBS = "blobs"
"""The part of the names of all blobs before the first slash."""

_MARKER = "payload-store"
_MARKER_TEXT = b"The payload store of an application. Its jobs name the files in blobs/.\n"
_NOT_MADE = Sentence(
    "it lacks the file {file}: it is not mounted, or is another folder or bucket. Make a new store once with `{command}`",
    file=_MARKER,
    command=command("payloads create"),
)
_RANDOM_BYTES = 12
_ID = re.compile(r"[0-9a-f]{24}-[0-9a-f]{64}")
_LOG_INTERVAL_S = 60.0


class PayloadOffload:
    """Store, read and delete the arguments of jobs. Safe from any thread. ``url`` names the store in messages.

    The first push makes a store, unless it is ``made_before``: then it fails.
    """

    def __init__(self, store: BlobStore, url: str, threshold: int, *, made_before: bool = False) -> None:
        self.store = store
        self.url = shown_url(url)
        self.threshold = threshold
        """Arguments whose stored text has fewer bytes stay in the payload."""
        self._made_before = made_before
        self._marked = False
        self._log_rate = LogRateLimit(_LOG_INTERVAL_S)

    def move_out(self, payload: Payload) -> None:
        """Store the compressed arguments of a payload, if they are large, and replace them by the id of their blob.

        Arguments that are not compressed stay: their queue or class says that a reader cannot decompress them.

        Raises:
            PayloadStoreError: the store did not take them.
        """
        if not payload.get(COMPRESSED) or OFFLOADED in payload:
            return
        text = payload["args"][0]
        if len(text) < self.threshold:
            return
        try:
            stored = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            # A client middleware has stored the arguments in a form of its own, which only the application reads.
            return
        payload["args"], payload[OFFLOADED] = [self._put(str(payload.get("class")), stored)], len(stored)

    def _put(self, worker: str, stored: bytes) -> str:
        try:
            return self.put(stored)
        except OSError as error:
            raise PayloadStoreError(worker, len(stored), self.url, str(error)) from error

    def put(self, stored: bytes) -> str:
        """Store a blob, and return its id when it is durable. Raises OSError."""
        # Random: equal blobs have different ids, as each owner deletes its own. The digest is signed with the arguments.
        blob_id = f"{os.urandom(_RANDOM_BYTES).hex()}-{hashlib.sha256(stored).hexdigest()}"
        if not self._marked or (self._made_before and self.store.can_vanish):
            if self.store.get(_MARKER) is None:
                if self._made_before:
                    raise OSError(_NOT_MADE)
                self.make_store()
            self._marked = True
        self.store.put(blob_name(blob_id), stored)
        return blob_id

    def reason_not_made(self) -> str:
        """Return why this is no payload store, and what to do; empty if it is one. Raises OSError."""
        return "" if self.store.get(_MARKER) is not None else _NOT_MADE

    def make_store(self) -> bool:
        """Make the folder or prefix a payload store; return false if it is one. Raises OSError."""
        if self.store.get(_MARKER) is not None:
            return False
        self.store.put(_MARKER, _MARKER_TEXT)
        return True

    def fetch(self, payload: Payload, blob_id: str) -> bytes:
        """Return what ``move_out`` has stored.

        Raises:
            OffloadedArgumentsError: the store does not answer, or is not the one where arguments are stored.
            PayloadError: the blob is missing or damaged.
        """
        try:
            return self.get(blob_id)
        except OSError as error:
            self._unavailable(payload, str(error))
        except PayloadError as error:
            raise PayloadError(f"its arguments are offloaded, and {error.reason}") from None

    def get(self, blob_id: str) -> bytes:
        """Return a blob.

        Raises:
            OSError: the store does not answer, or is not the one where blobs are stored.
            PayloadError: the blob is missing or damaged.
        """
        if _ID.fullmatch(blob_id) is None:
            raise PayloadError(f"{blob_id!r:.40} is no id of a blob")
        try:
            stored = self.store.get(blob_name(blob_id))
            # An empty folder: a file system that is not mounted, or another bucket.
            is_store = stored is not None or self.store.get(_MARKER) is not None
        except OSError as error:
            raise OSError(f"the payload store {self.url} does not answer ({error})") from error
        if not is_store:
            raise OSError(f"{self.url} is no payload store: it lacks the file {_MARKER}")
        if stored is None:
            raise PayloadError(f"the payload store {self.url} has no blob {blob_id}")
        if not blob_id.endswith(hashlib.sha256(stored).hexdigest()):
            raise PayloadError(f"the blob {blob_id} in {self.url} is damaged: it has another digest")
        return stored

    def restore(self, payload: Payload) -> None:
        """Put offloaded arguments back into the payload. Raises as ``fetch``."""
        stored = self.fetch(payload, str(payload["args"][0]))
        payload["args"] = [base64.b64encode(stored).decode("ascii")]
        payload.pop(OFFLOADED)

    def delete(self, blob_id: str) -> None:
        """Delete the blob of a job that has ended. If the store does not answer, the sweep deletes it later."""
        if _ID.fullmatch(blob_id) is None:
            return
        try:
            self.store.delete(blob_name(blob_id))
        except OSError as error:
            self._log_rate.warning(
                "delete",
                "the offloaded arguments of ended jobs were not deleted; the sweep deletes them later. Look at the error",
                "payload_store.delete_failed",
                error=error,
            )

    def delete_of(self, data: bytes) -> None:
        """Delete the blob of the job with these bytes, which is stored nowhere, if it has one."""
        if OFFLOADED.encode() in data and OFFLOADED in (fields := loads_object(data)):
            self.delete(str(fields["args"][0]))

    def _unavailable(self, payload: Payload, reason: str) -> NoReturn:
        name = str(payload.get("class"))
        self._log_rate.error(
            name,
            f"jobs of {name} are deferred, because {reason}. Make the store of payload_offload.url reachable for this process",
            "payload_store.unavailable",
            **{"class": name},
        )
        raise OffloadedArgumentsError(reason)


def blob_name(blob_id: str) -> str:
    """Return the name of a blob: 256 folders, so that none has millions of files."""
    return f"{BLOBS}/{blob_id[:2]}/{blob_id}"
