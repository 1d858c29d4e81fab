"""``exporter``: serve the figures of all shards to Prometheus; ``jobs counters``: print them once."""

import os
import signal
import sys
from collections.abc import Sequence

import click

from framework.all_settings import Settings
from framework.declare import registry
from framework.errors import FrameworkError
from framework.features.observability.exporter import ExporterServer, open_fleet
from framework.features.observability.figure_text import exposition
from framework.features.observability.settings import ObservabilitySettings
from framework.features.observability.shard_watch import Fleet
from framework.process.boot_warnings import warn_similar_queue
from framework.process.own_queues import known_queues
from framework.process.signals import SignalQueue
from framework.process.worker_options import HealthAddress
from framework.route.router import Router, load_workers, open_router
from framework.telemetry import logs
from framework.terminal.options import AddressOption, modules_option, shard_option
from framework.terminal.output import echo_whole, reports_errors
from framework.terminal.project import print_load_error
from framework.terminal.shards import ShardCommand

_DEFAULT_ADDRESS = "127.0.0.1:9168"
"""The port of gitlab-exporter."""


@click.command("exporter")
@click.option(
    "--listen",
    type=AddressOption(),
    default=_DEFAULT_ADDRESS,
    show_default=True,
    help="Listen at this address; 0.0.0.0 is every IPv4 address of this host, [::] every address.",
)
@shard_option
@modules_option
@reports_errors
def exporter(listen: tuple[str, int], names: Sequence[str], modules: Sequence[str]) -> None:
    """Serve the figures of all shards at /metrics, and the slots that they need at /slots_needed.

    One is enough: it reads all shards, each with three to five commands per scrape, at most once a second. A shard that does not
    answer has application_worker_up 0, and no other figure. It needs the Redis rights of `acl read-only`.

    The exit status is 0 after TERM or INT.
    """
    on = ShardCommand(names, role="exporter")
    descriptor = logs.redirect_stdout()
    signals = SignalQueue()
    signals.install()
    logging = on.settings.logging
    logs.open_server_log(logging.level, {"pid": os.getpid(), "worker_id": "exporter"}, descriptor, form=logging.format)
    fleet = _open(on, modules)
    server = ExporterServer(fleet, HealthAddress(*listen, source="--listen"))
    server.start()
    while not any(number in (signal.SIGTERM, signal.SIGINT) for number in signals.wait(None)):
        pass
    server.shutdown()
    server.server_close()
    fleet.close()
    logs.close_server_log()
    # The read of a silent shard is not waited for.
    sys.exit(0)


@click.command("counters")
@shard_option
@modules_option
@reports_errors
def counters(*, names: Sequence[str], modules: Sequence[str]) -> None:
    """Print the figures of all shards in Prometheus' text format.

    It is what `exporter` serves, read once: the rates behind application_worker_slots_needed are not known. Status 1: a shard does
    not answer.
    """
    on = ShardCommand(names)
    fleet = _open(on, modules)
    echo_whole(exposition(fleet.figures()).splitlines())
    fleet.close()
    for name, answer in fleet.answers().items():
        if answer.error is not None:
            on.note_unanswered(name, answer.error)
    on.exit_if_unanswered()


def _open(on: ShardCommand, modules: Sequence[str]) -> Fleet:
    """Return the figures of the shards; without the loaded classes their queues count as those of urgency low."""
    settings = on.settings
    try:
        router = load_workers(settings, list(modules) or list(settings.workers_module))
    except FrameworkError as error:
        print_load_error(": their queues count as those of urgency low, and no cron entry has figures", error)
        router = open_router(settings)
    _warn_unknown_queues(settings, router)
    return open_fleet(settings, list(on.shards.values()), router, [one.declaration() for one in registry.workers()])


def _warn_unknown_queues(settings: Settings, router: Router) -> None:
    """Warn of a misspelt queue in a group: its jobs would count for no slots of the group, and its processes not scale."""
    known = known_queues(router)
    for group, queues in ObservabilitySettings.of(settings).fleet.queue_groups.items():
        for name in queues:
            message = f"no worker is routed to the queue {{}} of the group {group!r} in fleet.queue_groups (did you mean {{}}?)"
            warn_similar_queue(name, known, (), f"{message}: no jobs count for it")
