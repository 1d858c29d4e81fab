"""Build the flags of a process from its settings: those that the policies of a shard read, and those that the application asks."""

import os
import socket
from collections.abc import Callable, Iterator
from typing import TypeVar

from redis.exceptions import RedisError

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature import Late
from framework.features.flags.flag import (
    Flag,
    FlagSource,
    LayeredFlags,
    drop_flag,
    is_class_flag,
    pause_flag,
    run_flag,
)
from framework.features.flags.openfeature import OpenFeatureFlags
from framework.features.flags.redis_flags import (
    RedisFlags,
    RefreshedFlags,
    ShardFlags,
    read_flags_in_force,
    set_flag,
    unset_flag,
)
from framework.features.flags.settings import FlagSettings
from framework.process.worker_parts import ProcessContext, WorkerPart
from framework.push.client import Client
from framework.route.router import MAIN
from framework.shard.redis_errors import unavailable_error
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from framework.text import join_names
from framework.version import install_extra
from framework.wire import keys

T = TypeVar("T")


class _ServedFlags:
    """The flags of the shard that this worker process serves. Its periodic tasks read them, so no other reader is needed."""

    shard = MAIN
    flags: ShardFlags | None = None


def serve_flags(shard: str, flags: ShardFlags) -> None:
    """Answer the questions of the application from the flags of the shard that this worker process serves."""
    _ServedFlags.shard, _ServedFlags.flags = shard, flags


class ProcessFlags:
    """The flags of this process. Jobs are asked about the flags of their shard, other code about those of ``main``."""

    def __init__(self, settings: FlagSettings, shards: Shards) -> None:
        self._settings = settings
        self._shards = shards
        self._opened: dict[str, ShardFlags] = {}

    def enabled(self, name: str, key: str | int | None = None) -> bool:
        """Return whether a flag is on where this process reads flags. Sends nothing to Redis, except at the first use."""
        flags = self._of(_ServedFlags.shard).all
        flags.watch(name)
        return flags.enabled(name, key)

    def enabled_on(self, shard: str, name: str) -> bool:
        """Return whether a flag is on for jobs of a shard, as ``enabled``."""
        return self._of(shard).all.enabled(name)

    @property
    def ready(self) -> bool:
        """Whether ``enabled`` answers without waiting for Redis."""
        flags = self._of(_ServedFlags.shard).all
        return not isinstance(flags, RefreshedFlags) or flags.ready

    def set(self, flag: Flag, duration_s: float | None) -> Flag:
        """Set a flag on every shard, and return it with its times.

        Raises:
            ShardUnavailableError: a shard does not answer or refuses; the flag is set on the others.
        """

        def step(shard: Shard) -> Flag:
            written = set_flag(shard.client, flag, duration_s)
            self._of(shard.name).stored.note_written(flag.name, written)
            return written

        return self._on_every_shard(f"the flag {flag.name} is set", step)[_ServedFlags.shard]

    def clear(self, name: str) -> bool:
        """Clear a flag on every shard; return whether it was set on one of them. Raises as ``set``."""

        def step(shard: Shard) -> bool:
            found = unset_flag(shard.client, name)
            self._of(shard.name).stored.note_written(name, None)
            return found

        return any(self._on_every_shard(f"the flag {name} is cleared", step).values())

    def all(self) -> dict[str, Flag]:
        """Read the flags of the application where this process reads flags. Raises ShardUnavailableError."""
        shard = self._shards[_ServedFlags.shard]
        try:
            _, found = read_flags_in_force(shard.client)
        except (RedisError, OSError) as error:
            raise unavailable_error(shard.name, shard.endpoint, error) from error
        return {name: flag for name, flag in sorted(found.items()) if flag is not None and not is_class_flag(name)}

    def _of(self, shard: str) -> ShardFlags:
        if _ServedFlags.flags is not None and shard == _ServedFlags.shard:
            return _ServedFlags.flags
        # One step adds the flags: of two threads that open a shard at the same time, both use the first.
        return self._opened.get(shard) or self._opened.setdefault(shard, self._open(shard))

    def _open(self, name: str) -> ShardFlags:
        stored = RedisFlags(self._shards[name].client, name)
        return ShardFlags(RefreshedFlags(open_flags(self._settings, stored), name), stored)

    def _on_every_shard(self, done: str, step: Callable[[Shard], T]) -> dict[str, T]:
        """Run the step on every shard, also after one has failed. Raises ShardUnavailableError if one has."""
        results: dict[str, T] = {}
        failed: dict[str, RedisError | OSError] = {}
        for name, shard in self._shards.items():
            try:
                results[name] = step(shard)
            except (RedisError, OSError) as error:
                failed[name] = error
        if failed:
            first, cause = next(iter(failed.items()))
            state = f"{done} on {join_names(results)}, and not on {join_names(failed)}" if results else ""
            raise unavailable_error(first, self._shards[first].endpoint, cause, state=state) from cause
        return results


def open_process_flags(client: Client) -> ProcessFlags:
    """Return the flags on the shards of the client. Opens no socket."""
    return ProcessFlags(FlagSettings.of(client.settings), client.shards)


PROCESS_FLAGS: "Late[Callable[[Client], ProcessFlags]]" = Late(
    "framework.features.flags.process_flags:open_process_flags"
)


def open_flags(settings: FlagSettings, stored: RedisFlags) -> FlagSource:
    """Return the flags for jobs of a shard: those ``stored`` there, then those of the provider, if there is one.

    Opens no socket. Raises ConfigurationError when the provider's SDK is not installed.
    """
    if settings.flags.provider == "redis":
        return stored
    try:
        provided = OpenFeatureFlags(known_flags, f"{socket.gethostname()}:{os.getpid()}")
    except ImportError as error:
        message = f"openfeature needs its SDK ({error}): {install_extra('flags')}"
        raise ConfigurationError(
            [ConfigurationProblem(settings.config_file_label("application.yml"), "flags.provider", message)]
        ) from error
    return LayeredFlags(stored, provided)


def known_flags() -> Iterator[str]:
    """Yield the names of all flags that the policies of this process may read."""
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        for name in (run_flag, drop_flag, pause_flag):
            yield name(declaration.wire_name)
        if declaration.deduplicate is not None and declaration.deduplicate.feature_flag is not None:
            yield declaration.deduplicate.feature_flag


class WorkerFlags:
    """The flags that the features of one worker process share. Only its periodic work reads them from Redis."""

    def __init__(self, process: ProcessContext) -> None:
        self._process = process
        process.absent.watch(keys.FLAGS)
        self.stored = RedisFlags(process.upkeep, process.shard.name, process.absent)
        self.all = open_flags(FlagSettings.of(process.settings), self.stored)

    def refresh(self) -> None:
        """Read the flags again. Raises redis errors."""
        if self.all.read():
            self._process.invalidate()

    def serve(self) -> None:
        """Answer the application from these flags: no other reader is needed."""
        serve_flags(self._process.shard.name, ShardFlags(self.all, self.stored))


WORKER_FLAGS: "Late[Callable[[ProcessContext], WorkerFlags]]" = Late(
    "framework.features.flags.process_flags:WorkerFlags"
)


def worker_part(process: ProcessContext) -> WorkerPart:
    flags = process.service(WORKER_FLAGS)
    return WorkerPart(refresh=flags.refresh, serve=flags.serve)
