"""From settings to shards, router and client."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from framework.declare import port, registry
from framework.declare.declaration import Declaration
from framework.declare.request import BulkRequest, PushRequest, Route
from framework.declare.slices import bind_all
from framework.errors import ConfigurationError, Problem
from framework.execute.inline import run_inline
from framework.finish.states import States
from framework.flags.flag import FlagSource
from framework.policies.consistency.databases import Databases, open_databases
from framework.policies.consistency.positions import Stamps
from framework.policies.pause import strategies
from framework.push.client import Client
from framework.push.deduplication import Deduplicator
from framework.push.size_limiter import SizeLimiter, SizeLimits, TrackedPayloads
from framework.push.strictness import Strictness
from framework.route.router import Router
from framework.settings.load import load
from framework.settings.model import ENV_PREFIX, Settings, ShardSettings
from framework.shard.shard import Shard, Shards
from framework.shard.validator import Validator
from framework.store.connect import Endpoint
from framework.store.embedded import embedded_url, store_dir
from framework.telemetry import logs
from framework.telemetry.sentry import Tracker, open_tracker
from framework.types import Jid, JobState
from framework.wire.status import Tracked
from framework.wiring import chains
from framework.wiring.flags import lazy_flags
from framework.wiring.stale_queues import warn_of_stale_queues


class Enqueuer:
    """What stands behind the port of ``declare``: the client, and the inline run, which needs both chains."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.shards = open_shards(settings, role="client")
        self.databases = databases_of(settings)
        self._strictness = Strictness(settings.strict_arguments)
        self.client = Client(
            self.shards,
            open_router(settings),
            middleware=chains.client.compiled(),
            limiter=open_limiter(settings),
            strictness=self._strictness,
            stamps=Stamps(self.databases),
            deduplicator=open_deduplicator(settings, self.shards),
        )

    def push(self, request: PushRequest) -> Jid | None:
        """See ``Client.push``."""
        return self.client.push(request)

    def push_bulk(self, request: BulkRequest) -> list[Jid | None]:
        """See ``Client.push_bulk``."""
        return self.client.push_bulk(request)

    def fill(self, request: PushRequest, limit: int, most: int | None) -> list[Jid]:
        """See ``Client.fill``."""
        return self.client.fill(request, limit, most)

    def route(self, declaration: Declaration) -> Route:
        """See ``Client.route``."""
        return self.client.route(declaration)

    def perform_inline(self, worker: type[Any], request: PushRequest) -> Jid | None:
        """Run the job here and now through both chains and a JSON round trip, without retries; raises what the job raises."""
        data = self.client.payload_bytes(request)
        if data is None:
            return None
        states = States(self.client.shard(request), _state_refused)
        limit = self._settings.size_limit.decompressed_limit
        return run_inline(worker, data, chains.server.compiled(), limit, self._strictness, states)

    def perform_bulk_inline(self, worker: type[Any], request: BulkRequest) -> list[Jid | None]:
        """Run the jobs here and now, one after the other, when all have been checked; raises what one of them raises."""
        declaration, options = request.declaration, request.options
        loosener = self._strictness.loosener(declaration)
        bound = bind_all(declaration.signature, request.args, loosener)
        if loosener is not None:
            loosener.tell()
        choices: list[Mapping[str, Any]] = [options] * len(bound)
        if request.contexts is not None:
            shared = options.get("context", {})
            choices = [{**options, "context": {**shared, **own}} for own in request.contexts]
        return [
            self.perform_inline(worker, PushRequest(declaration, args, None, chosen))
            for args, chosen in zip(bound, choices, strict=True)
        ]

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        """See ``look_up`` of ``framework.status``."""
        return self.shards.look_up(jids)


def _state_refused(tracked: Tracked, state: JobState, error: BaseException) -> None:
    logs.logger(jid=tracked.jid).warning(
        "the state of an inline job was not written", event_name="status.refused", state=state, error=error
    )


def databases_of(settings: Settings) -> Databases:
    """Return the configured databases, the same for every caller with these settings; no socket is opened."""
    return open_databases(tuple(sorted(settings.databases.items())))


def open_deduplicator(settings: Settings, shards: Shards) -> Deduplicator:
    """Return who looks for duplicates; a class's feature flag is asked of the shard that its job goes to."""
    flags: dict[str, FlagSource] = {}

    def enabled(shard: str, flag: str) -> bool:
        if shard not in flags:
            flags[shard] = lazy_flags(settings, shards[shard])
        return flags[shard].enabled(flag)

    return Deduplicator(enabled)


def open_shards(settings: Settings, *, role: str) -> Shards:
    """Return every configured shard; no socket is opened."""
    validator = open_validator(settings)
    return Shards(
        {name: Shard(name, endpoint_of(settings, name), role=role, validator=validator) for name in settings.shards}
    )


def open_validator(settings: Settings) -> Validator:
    """Return who judges the calls of application code to a job Redis: production reports, every other environment raises."""
    return Validator(strict=settings.env_name != "production", tracker=lambda: tracker_of(settings))


def tracker_of(settings: Settings) -> Tracker:
    """Open the error tracker of this process, if it has one."""
    dsn = settings.sentry.dsn
    return open_tracker(dsn.get_secret_value() if dsn is not None else None, settings.env_name)


def open_router(settings: Settings) -> Router:
    """Return the router of the configured rules. Raises ConfigurationError for invalid ones."""
    source = f"{settings.config_dir.name}/routing.yml"
    if f"{ENV_PREFIX}ROUTING_RULES" in os.environ:
        source = f"environment: {ENV_PREFIX}ROUTING_RULES"
    return Router(
        settings.routing_rules,
        settings.shards,
        settings.feature_categories,
        source=source,
        retired=settings.retired_workers,
    )


def open_limiter(settings: Settings) -> SizeLimiter:
    """Return the judge of the arguments' sizes."""
    sizes = settings.size_limit
    limits = SizeLimits(sizes.mode, sizes.compression_threshold, sizes.limit, sizes.decompressed_limit)
    return SizeLimiter(limits, TrackedPayloads(lambda: tracker_of(settings)))


def endpoint_of(settings: Settings, shard: str) -> Endpoint:
    """Return where a shard's Redis is.

    An embedded store that is not running gets the address at which it will listen: the error comes with the first
    command, names the way out, and ends when the store is started.
    """
    chosen = settings.shards[shard]
    url = chosen.url
    if chosen.embedded:
        url = embedded_url(settings.var_dir, shard) or f"unix://{store_dir(settings.var_dir, shard) / 'server.sock'}"
    if chosen.tls is not None and url.startswith("redis://"):
        url = "rediss://" + url.removeprefix("redis://")
    sentinels = tuple((sentinel.host, sentinel.port) for sentinel in chosen.sentinels)
    return Endpoint(url, sentinels, chosen.sentinel_name or "", tuple(_options(chosen).items()))


def checked_router(settings: Settings) -> Router:
    """Return the router, which agrees with every registered worker.

    Raises:
        ConfigurationError: with every rule that is wrong and every worker whose facts contradict the configuration.
    """
    problems: list[Problem] = []
    try:
        router = open_router(settings)
    except ConfigurationError as error:
        problems += error.problems
        router = Router((), settings.shards, settings.feature_categories, retired=settings.retired_workers)
    for worker in registry.workers():
        declaration: Declaration = worker.declaration()
        problems += router.refusals(declaration)
        problems += strategies.refusals(declaration)
    problems += databases_of(settings).problems(worker.declaration() for worker in registry.workers())
    if problems:
        raise ConfigurationError(problems)
    return router


def _options(chosen: ShardSettings) -> dict[str, Any]:
    """Return redis-py's options for credentials, protocol and TLS; what is not set is left to the URL."""
    options: dict[str, Any] = {
        "username": chosen.username,
        "password": chosen.password.get_secret_value() if chosen.password is not None else None,
        "protocol": chosen.protocol,
    }
    tls = chosen.tls
    if tls is not None:
        options |= {
            "ssl": True if chosen.sentinels else None,
            "ssl_ca_certs": str(tls.ca_file) if tls.ca_file else None,
            "ssl_certfile": str(tls.cert_file) if tls.cert_file else None,
            "ssl_keyfile": str(tls.key_file) if tls.key_file else None,
            "ssl_cert_reqs": "required" if tls.verify else "none",
            "ssl_check_hostname": tls.verify and tls.check_hostname,
        }
    return {name: value for name, value in options.items() if value is not None}


def connect(settings: Settings) -> None:
    """Check the whole configuration against the worker classes and connect them to it. Opens no socket.

    Raises:
        ConfigurationError: with every problem found.
    """
    checked_router(settings)
    port.bind(Enqueuer(settings))


def boot() -> Settings:
    """Load and check the whole configuration now and connect the worker classes to it; return the settings.

    A server calls it at start, so that errors come then and not with the first push. Opens no socket. A generated file that
    is stale is told to the logger ``framework``.

    Raises:
        ConfigurationError: with every problem found.
    """
    settings = load()
    connect(settings)
    warn_of_stale_queues(settings)
    return settings


def bind_default() -> None:
    """From now on the first push of the process loads the configuration and connects."""
    port.bind_factory(lambda: Enqueuer(load()))
