"""``scripts/store start|stop|status``: the development stores, a server for each shard with ``url: embedded``."""

import sys
from collections.abc import Mapping

import click

from framework.cli.failure import EXIT_FAILED, explained
from framework.settings.load import load
from framework.store.embedded import EmbeddedServer, store_dir


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Start, stop or show the development stores: a server for each shard whose url is `embedded`.

    They run in the background and keep their data under var/stores until it is deleted.
    """


@store.command()
@explained
def start() -> None:
    """Start the stores that do not run yet; each answers when this returns."""
    for shard, server in _servers().items():
        found = server.running
        server.start()
        click.echo(f"{shard}: {'runs already' if found else 'started'}, pid {server.pid}, {server.url}")


@store.command()
@explained
def stop() -> None:
    """Stop the stores in order; their data stays."""
    for shard, server in _servers().items():
        found = server.running
        server.stop()
        click.echo(f"{shard}: {'stopped' if found else 'did not run'}; its data is in {server.data_dir}")


@store.command()
@explained
def status() -> None:
    """Show each store; the exit status is 1 unless all of them run."""
    servers = _servers()
    for shard, server in servers.items():
        click.echo(f"{shard}: {f'runs, pid {server.pid}, {server.url}' if server.running else 'does not run'}")
    if not all(server.running for server in servers.values()):
        sys.exit(EXIT_FAILED)


def main() -> None:
    """Entry point of ``scripts/store``."""
    store(prog_name="scripts/store")


def _servers() -> Mapping[str, EmbeddedServer]:
    settings = load()
    embedded = [name for name, shard in settings.shards.items() if shard.url == "embedded"]
    if not embedded:
        click.echo("No shard in config/redis.yml has `url: embedded`, so there is nothing to do here.")
    return {name: EmbeddedServer(store_dir(settings.var_dir, name), detached=True) for name in embedded}
