"""Build the flags of a shard from the settings."""

import os
import socket
from collections.abc import Iterator

from framework.declare import registry
from framework.declare.declaration import Declaration
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.feature_flags.flag import FlagSource, LayeredFlags, drop_flag, pause_flag, run_flag
from framework.feature_flags.openfeature import OpenFeatureFlags
from framework.feature_flags.redis_flags import RedisFlags
from framework.settings.model import Settings
from framework.shard.shard import Shard
from framework.version import install_extra


def lazy_flags(settings: Settings, shard: Shard) -> FlagSource:
    """Return the flags for pushes to a shard, which are read on demand, as a producer has no periodic task.

    Otherwise as ``open_flags``.
    """
    return open_flags(settings, RedisFlags(shard.client, shard.name, lazy=True), lazy=True)


def open_flags(settings: Settings, stored: RedisFlags, *, lazy: bool = False) -> FlagSource:
    """Return the flags for jobs of a shard: those ``stored`` there, then those of the provider, if there is one.

    Opens no socket. Raises ConfigurationError when the provider's SDK is not installed.
    """
    if settings.flags.provider == "redis":
        return stored
    try:
        provided = OpenFeatureFlags(known_flags, f"{socket.gethostname()}:{os.getpid()}", lazy=lazy)
    except ImportError as error:
        message = f"openfeature needs its SDK ({error}): {install_extra('flags')}"
        raise ConfigurationError(
            [ConfigurationProblem(settings.config_file_label("application.yml"), "flags.provider", message)]
        ) from error
    return LayeredFlags(stored, provided)


def known_flags() -> Iterator[str]:
    """Yield the names of all flags that this process may read."""
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        for name in (run_flag, drop_flag, pause_flag):
            yield name(declaration.wire_name)
        if declaration.deduplicate is not None and declaration.deduplicate.feature_flag is not None:
            yield declaration.deduplicate.feature_flag
