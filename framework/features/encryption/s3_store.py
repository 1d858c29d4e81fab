"""Keep blobs in a bucket with the API of S3, with the package ``obstore`` (the extra ``s3``).

Credentials come from where AWS programs look for them: the variables ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, a web
identity, or the role of the machine.
"""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

from framework.errors import ConfigurationError, ConfigurationProblem
from framework.features.encryption.blob_store import StoredBlob
from framework.version import install_extra

# No call blocks for ever: with its retries it lasts at most the last of these.
_CONNECT_TIMEOUT, _REQUEST_TIMEOUT = "3s", "20s"
_RETRIES, _RETRY_TIMEOUT = 2, timedelta(seconds=20)


class S3Store:
    """See ``BlobStore``. Opens no connection before the first call."""

    can_vanish = False

    def __init__(self, bucket: str, prefix: str, *, endpoint: str | None = None, region: str | None = None) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._endpoint, self._region = endpoint, region

    def load(self) -> None:
        """Load the package now instead of at the first use.

        Raises:
            ConfigurationError: the package ``obstore`` is not installed.
        """
        _ = self._package

    def put(self, name: str, data: bytes) -> None:
        """See ``BlobStore``. The store answers when the blob is durable."""
        with self._as_os_error():
            self._package.put(self._client, name, data)

    def get(self, name: str) -> bytes | None:
        try:
            with self._as_os_error():
                return bytes(self._package.get(self._client, name).bytes())
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        try:
            with self._as_os_error():
                self._package.delete(self._client, name)
        except FileNotFoundError:
            return

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        with self._as_os_error():
            for page in self._package.list(self._client, prefix):
                for one in page:
                    yield StoredBlob(one["path"], one["size"], one["last_modified"].timestamp())

    @cached_property
    def _package(self) -> Any:
        try:
            return import_module("obstore")
        except ImportError:
            message = f"a URL with s3:// needs the package obstore: {install_extra('s3')}"
            raise ConfigurationError([ConfigurationProblem("payload_offload", "url", message)]) from None

    # Two threads may make two clients; one is kept.
    @cached_property
    def _client(self) -> Any:
        options: dict[str, Any] = {"prefix": self._prefix} if self._prefix else {}
        if self._endpoint is not None:
            options["endpoint"] = self._endpoint
        if self._region is not None:
            options["region"] = self._region
        made: Any = import_module("obstore.store").S3Store
        return made(
            self._bucket,
            client_options={"allow_http": True, "connect_timeout": _CONNECT_TIMEOUT, "timeout": _REQUEST_TIMEOUT},
            retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
            **options,
        )

    @contextmanager
    def _as_os_error(self) -> Generator[None]:
        """Turn the errors of the package into OSError: a missing blob is a FileNotFoundError."""
        # The package has threads, which a forked child does not have: its call would wait for ever, whatever the timeouts.
        if os.getpid() != _first_process():
            raise OSError(
                "this process was forked after its parent had used the bucket; start it by spawn, or fork earlier"
            )
        try:
            yield
        except OSError:
            raise
        except self._errors.NotFoundError as error:
            raise FileNotFoundError(_first_line(error)) from error
        except (ValueError, self._errors.BaseError) as error:
            raise OSError(_first_line(error)) from error

    @cached_property
    def _errors(self) -> Any:
        return import_module("obstore.exceptions")


@lru_cache(maxsize=1)
def _first_process() -> int:
    """Return the id of the process that has used the package first: this one, or the one that it was forked from."""
    return os.getpid()


def _first_line(error: Exception) -> str:
    """Return the fact of an error: what follows is the debug form of the same."""
    return str(error).strip().partition("\n")[0][:300]
