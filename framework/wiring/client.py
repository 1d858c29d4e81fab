"""Build the shards, the router and the client of a process from its settings."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from framework import middleware
from framework.admin.port import Access
from framework.all_settings import Settings, load
from framework.declare import port
from framework.declare.request import BulkRequest, PushRequest, bind_all
from framework.execute.inline import run_inline
from framework.finish.status_writer import StatusWriter
from framework.middleware.chain import Call
from framework.process.boot_warnings import warn_splits, warn_stale_queues, warn_unknown_variables
from framework.process.unserved import warn_unserved
from framework.push.argument_checks import OversizeReporter, SizeLimiter, SizeLimits, StrictArgumentsCheck
from framework.push.client import Client
from framework.push.job_batch import open_fallback
from framework.push.protection import PayloadProtection, open_protection
from framework.push.transactions import TransactionCheck
from framework.route.router import Router, checked_router, open_router
from framework.shard.shards import open_shards
from framework.telemetry import logs
from framework.telemetry.sentry import LazyTracker, tracker_of
from framework.types import Jid, JobState
from framework.wire.status_key import TrackedJob


class ProcessClient(Client):
    """Implement the client port of ``declare``: the pushes of ``Client``, and inline runs, which need both chains."""

    def __init__(self, settings: Settings, router: Router | None = None) -> None:
        """Open the client with ``router``, or with a router of the settings. Opens no socket."""
        self._settings = settings
        self._strict_arguments = StrictArgumentsCheck(settings.strict_arguments)
        shards, protection = open_shards(settings, role="client"), open_protection(settings)
        super().__init__(
            shards,
            router or open_router(settings),
            middleware=middleware.client.compile(),
            limiter=open_limiter(settings, protection),
            strict_arguments=self._strict_arguments,
            transaction_check=TransactionCheck(settings.push_in_transaction, LazyTracker(lambda: tracker_of(settings))),
            fallback=open_fallback(settings, shards),
            protection=protection,
        )
        self.join_features()

    @property
    def settings(self) -> Settings:
        return self._settings

    def perform_inline(self, worker: type[Any], request: PushRequest) -> Jid | None:
        """Run a job in this thread, through both chains and a JSON round trip, without retries; raises what the job raises."""
        data = self.payload_bytes(request)
        if data is None:
            return None
        states = StatusWriter(self.shard(request), _status_write_failed)
        sizes = self.settings.size_limit
        try:
            return run_inline(
                worker,
                data,
                self.server_calls(),
                sizes.decompressed_limit,
                self._strict_arguments,
                states,
                sizes.decoded_limit,
                self.protection.reader,
            )
        finally:
            self.protection.discard(data)

    def perform_bulk_inline(self, worker: type[Any], request: BulkRequest) -> list[Jid | None]:
        """Check all jobs, then run them one after the other in this thread; raises what one of them raises."""
        declaration, options = request.declaration, request.options
        coercer = self._strict_arguments.coercer(declaration)
        bound = bind_all(declaration.signature, request.args, coercer)
        if coercer is not None:
            coercer.log_complaints()
        choices: list[Mapping[str, Any]] = [options] * len(bound)
        if request.contexts is not None:
            shared = options.get("context", {})
            choices = [{**options, "context": {**shared, **own}} for own in request.contexts]
        return [
            self.perform_inline(worker, PushRequest(declaration, args, None, chosen))
            for args, chosen in zip(bound, choices, strict=True)
        ]

    def server_calls(self) -> tuple[Call, ...]:
        return middleware.server.compile()

    def look_up(self, jids: Sequence[Jid]) -> dict[Jid, JobState]:
        return self.shards.look_up(jids)

    def cancel(self, jid: Jid) -> bool:
        return self.shards.cancel(jid)


def _status_write_failed(tracked: TrackedJob, state: JobState, error: BaseException) -> None:
    logs.logger(jid=tracked.jid).warning(
        "the status of an inline job was not written; the job continues. Look at the error",
        event_name="status.write_failed",
        state=state,
        error=error,
    )


def open_limiter(settings: Settings, protection: PayloadProtection) -> SizeLimiter:
    """Return the limiter of the arguments' sizes: arguments above them may be stored outside of Redis."""
    sizes = settings.size_limit
    limits = SizeLimits(
        sizes.mode,
        sizes.compression_threshold,
        sizes.limit,
        sizes.decompressed_limit,
        sizes.uncompressed_queues,
        sizes.decoded_limit,
        offloads=protection.delete_blob is not None,
    )
    return SizeLimiter(limits, OversizeReporter(LazyTracker(lambda: tracker_of(settings))))


def connect(settings: Settings) -> Router:
    """Check the configuration against the worker classes, bind the client, and return the router. Opens no socket.

    Raises:
        ConfigurationError: with every problem found.
    """
    router = checked_router(settings)
    bind(ProcessClient(settings, router))
    return router


def boot() -> Settings:
    """Load and check the whole configuration, bind the client to the worker classes, and return the settings.

    A server calls it at start, so that errors come then and not with the first push. The logger ``framework`` warns of unknown
    variables, a stale generated file, limits that hold on several shards, and queues of loaded classes that no running process
    serves. For the last, each shard is asked once in a few reads with short deadlines, and the connections are closed; a shard
    that does not answer is skipped. Within a mode of ``framework.testing`` no shard is asked, and the mode stays.

    Raises:
        ConfigurationError: with every problem found.
    """
    settings = load()
    router = connect(settings)
    process_client.current().fallback.start()
    warn_unknown_variables(settings)
    warn_stale_queues(settings)
    warn_splits(settings, router)
    if process_client.overridden:
        return settings
    shards = open_shards(settings, role="boot")
    try:
        warn_unserved(settings, router, shards)
    finally:
        shards.close()
    return settings


def bind(client: ProcessClient) -> None:
    """Let worker classes push through ``client``, and the public modules use its shards and databases."""
    process_client.bind(client)
    port.bind(client)


@contextmanager
def override(client: ProcessClient) -> Generator[None]:
    """For tests: as ``bind`` within the block."""
    with process_client.override(client), port.override(client):
        yield


def bind_default() -> None:
    """Make the next push of the process load the configuration and connect."""
    process_client.unbind()
    process_client.bind_factory(_open_default)
    port.bind_factory(process_client.current)


def default_client() -> ProcessClient:
    """Return the client of the process; in a process that has not called ``boot()``, load the configuration first."""
    return process_client.current()


def open_access() -> Access:
    """Return the shards and the settings of the client of this process, for ``framework.admin``. Opens no socket."""
    client = process_client.current()
    return Access(client.shards, client.settings)


def _open_default() -> ProcessClient:
    settings = load()
    warn_unknown_variables(settings)
    client = ProcessClient(settings)
    client.fallback.start()
    return client


process_client: port.Binding[ProcessClient] = port.Binding("`import framework` binds the client of the process.")
"""The client of this process, with its shards and databases."""

process_client.bind_factory(_open_default)
