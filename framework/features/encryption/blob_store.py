"""Keep bytes under names, outside of Redis: in a folder, or in a bucket with the API of S3."""

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from framework import private_files
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.version import install_extra


class StoredBlob(NamedTuple):
    name: str
    size: int
    modified: float
    """Epoch seconds, by the clock of the store."""


class BlobStore(Protocol):
    """Store blobs. Safe from any thread. Each method raises OSError if the store does not answer, or refuses."""

    can_vanish: bool
    """Whether an empty folder may appear in its place without an error, because a file system is no longer mounted."""

    def put(self, name: str, data: bytes) -> None:
        """Store a blob, and return when it is durable. A name that exists gets the new bytes."""
        ...

    def get(self, name: str) -> bytes | None:
        """Return the bytes of a blob, ``None`` if there is none of this name."""
        ...

    def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""
        ...

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        """Yield the blobs below ``prefix``, the part of their names before a slash."""
        ...


_UNFINISHED = ".part"


class FolderStore:
    """See ``BlobStore``. The parent of ``root`` must exist: a file system that is not mounted must not be replaced by a folder."""

    can_vanish = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes) -> None:
        path = self._path_of(name)
        self._make_folders(path.parent)
        unfinished = path.with_name(path.name + _UNFINISHED)
        try:
            _write_whole(unfinished, data)
            unfinished.replace(path)
        except OSError:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)

    def get(self, name: str) -> bytes | None:
        try:
            return private_files.read_file(self._path_of(name))
        except FileNotFoundError:
            return None

    def delete(self, name: str) -> None:
        self._path_of(name).unlink(missing_ok=True)

    def list(self, prefix: str) -> Iterator[StoredBlob]:
        for folder, _, names in os.walk(self._path_of(prefix), onerror=_raise_unless_missing):
            for name in names:
                path = Path(folder, name)
                # Another process may delete it meanwhile.
                with suppress(FileNotFoundError):
                    found = path.stat()
                    yield StoredBlob(path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime)

    def _path_of(self, name: str) -> Path:
        """Return the path of a blob. Raises UnsafeFileError if other users may write into the root."""
        private_files.check_folder(self._root)
        return self._root / name

    def _make_folders(self, folder: Path) -> None:
        """Make a folder and those above it up to the root, each durable in its parent."""
        if folder.is_dir():
            return
        if folder != self._root:
            self._make_folders(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        _sync_folder(folder.parent)


def _write_whole(path: Path, data: bytes) -> None:
    descriptor = private_files.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


# No call blocks for ever: with its retries it lasts at most the last of these.
_CONNECT_TIMEOUT, _REQUEST_TIMEOUT = "3s", "20s"
_RETRIES, _RETRY_TIMEOUT = 2, timedelta(seconds=20)


class S3Store:
    """A bucket with the API of S3. Opens no connection before the first call."""

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
