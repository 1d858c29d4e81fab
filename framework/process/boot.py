"""Wait for Redis at the boot of a worker process, check the rights of its user, and print the banner of a terminal."""

import os
import platform
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from framework import timings
from framework.command_line import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, command
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.process.components import ProcessComponents
from framework.process.signals import DRAIN, STOP, STOP_NOW, SignalQueue
from framework.settings.model import CoreSettings
from framework.shard.redis_errors import advice_for, wrong_setting
from framework.shard.shard import Shard
from framework.store.connect import UnsupportedServerError, tls_advice
from framework.store.rights import MissingRights, missing_worker_rights
from framework.telemetry import logs
from framework.telemetry.logs import ServerLog
from framework.text import format_count, visible
from framework.version import VERSION

_NO_REDIS = "start the development store with `{}`, or set REDIS_URL or {} to a Redis that runs"


def wait_for_redis(
    shard: Shard, components: ProcessComponents, signals: SignalQueue, check: Callable[[], None]
) -> int | None:
    """Wait for the first heartbeat; return an exit status after the timeout, a signal to stop, or the death of a thread.

    Only a heartbeat shows that the server works: one that answers may be loading its data, or be a replica. A lease that another
    process holds belongs to a copy with the same identity, which would share the working list: this process ends, and its
    supervisor starts it with another nonce.

    ``check`` runs before the first heartbeat, as soon as Redis answers; an error that is not Redis's ends the boot.
    """
    log, lease = logs.logger(), components.lease
    patience_s = timings.current().redis_patience_s
    deadline = time.monotonic() + patience_s
    logged = asked = False
    while True:
        try:
            if not asked:
                check()
            if not asked and lease.is_held():
                log.error(
                    "another process has the same identity, so this process ends with status 1. Make hostnames unique",
                    event_name="identity.collision",
                )
                return EXIT_FAILED
            # From here on this process may hold the lease, even if the reply is lost.
            asked = True
            lease.renew()
        except (RedisError, OSError) as error:
            lease.client.connection_pool.disconnect()
            if isinstance(error, UnsupportedServerError):
                raise _misconfigured(shard, "url", error) from None
            if not logged:
                _log_waiting(shard, error, patience_s)
                logged = True
            if time.monotonic() >= deadline:
                return _unreachable(shard, error, patience_s)
        else:
            return None
        status = _wait_for_next_try(components, signals)
        if status is not None:
            return status


def _wait_for_next_try(components: ProcessComponents, signals: SignalQueue) -> int | None:
    """Wait; return the exit status if the process must end instead of another try."""
    if any(number in (*STOP, STOP_NOW, DRAIN) for number in signals.wait(0.5)):
        return EXIT_OK
    return EXIT_FAILED if components.events.died.is_set() else None


def _log_waiting(shard: Shard, error: RedisError | OSError, patience_s: float) -> None:
    advice = _advice(shard, error)
    text = f"Redis does not accept the process yet; it tries for {patience_s:g} s"
    logs.logger().warning(
        f"{text}: {advice}" if advice else f"{text}. Check the server, its address and the network",
        event_name="boot.waiting",
        address=shard.endpoint.shown,
        user=shard.endpoint.user,
        error=error,
    )


def _unreachable(shard: Shard, error: RedisError | OSError, patience_s: float) -> int:
    """Log why Redis cannot be reached and return the exit status; raises ConfigurationError when a setting is the cause."""
    setting = wrong_setting(error)
    if setting is not None:
        raise _misconfigured(shard, setting, error) from None
    advice = _advice(shard, error) or _NO_REDIS.format(command("store start"), shard.endpoint.source)
    logs.logger().error(
        f"Redis did not answer for {patience_s:g} s, so the process ends with status {EXIT_UNREACHABLE}: {advice}",
        event_name="boot.unreachable",
        address=shard.endpoint.shown,
    )
    return EXIT_UNREACHABLE


def _advice(shard: Shard, error: RedisError | OSError) -> str | None:
    return advice_for(error, shard.endpoint.source) if isinstance(error, RedisError) else tls_advice(error)


def _misconfigured(shard: Shard, setting: str, error: RedisError | OSError) -> ConfigurationError:
    """Return the error of a process whose Redis answers but cannot hold jobs, or refuses the login."""
    endpoint = shard.endpoint
    advice = _advice(shard, error)
    message = f"{endpoint.shown}: {error}; {advice}" if advice else f"{endpoint.shown}: {error}"
    logs.logger().error(
        f"Redis is not usable as configured, so the process ends with status {EXIT_CONFIGURATION}. Correct the setting that "
        "the error names",
        event_name="boot.misconfigured",
        address=endpoint.shown,
        user=endpoint.user,
        error=error,
    )
    return ConfigurationError([ConfigurationProblem(endpoint.source, f"shards.{shard.name}.{setting}", message)])


def check_rights(settings: CoreSettings, shard: Shard) -> None:
    """Refuse to start without a right that a job would need; raises ConfigurationError and redis errors."""
    refused = missing_worker_rights(shard.client)
    user = shard.endpoint.user
    if refused.optional:
        logs.logger().debug(
            "the Redis user lacks optional commands; the process works without them",
            event_name="boot.optional_rights",
            commands=refused.optional,
        )
    if refused.commands or refused.keys:
        logs.logger().error(
            f"the Redis user lacks rights that a worker needs, so the process ends with status {EXIT_CONFIGURATION}. Grant the "
            f"rights that `{command('acl worker')}` prints",
            event_name="boot.rights_refused",
            user=user,
            commands=refused.commands,
            keys=refused.keys,
        )
        raise ConfigurationError([_missing_rights(settings, shard, refused)])


def _missing_rights(settings: CoreSettings, shard: Shard, refused: MissingRights) -> ConfigurationProblem:
    user, tag = shard.endpoint.user, shard.endpoint.tag
    advised = command(f"acl worker --user {user}{tag and f' --hash-tag {tag}'}")
    missing = [f"the command{'s' * (len(refused.commands) > 1)} {', '.join(refused.commands)}"] * bool(refused.commands)
    missing += [f"the key{'s' * (len(refused.keys) > 1)} {', '.join(refused.keys)}"] * bool(refused.keys)
    return ConfigurationProblem(
        settings.config_file_label("redis.yml"),
        f"shards.{shard.name}.username",
        f"the ACL of {shard.endpoint.shown} refuses {' and '.join(missing)} to the user {user!r}. Grant what is missing with `ACL "
        f"SETUSER {user} {refused.rules(shard.endpoint.prefix)}`, or all that a worker needs: `{advised}` prints it",
    )


def banner_text(shard: Shard, slots: int, timeout_s: float) -> str:
    """Return the text that describes the process and the way to stop it."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    lines = [
        "",
        f"  application-worker {VERSION}",
        f"  {python}, process {os.getpid()}, {format_count(slots, 'job')} at a time",
        f"  shard {shard.name}: {shard.endpoint.shown}",
        "",
        f"  Ctrl-C stops: running jobs get {timeout_s:g} s to end, the others go back to their queues.",
        "  A second Ctrl-C stops at once: running jobs go back, too, and run again from their beginning.",
        "  Ctrl-Z fetches no more jobs.",
        "",
    ]
    return "".join(f"{visible(line)}\n" for line in lines)


def print_banner(log: ServerLog, shard: Shard, slots: int, timeout_s: float) -> None:
    log.show(banner_text(shard, slots, timeout_s))
