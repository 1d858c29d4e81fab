"""``scripts/store start|stop|status``: the development stores, a server for each shard with ``url: embedded``."""

import sys
from collections.abc import Mapping

import click

from framework.errors import ConfigurationError
from framework.settings.load import load
from framework.store.embedded import EmbeddedServer, store_dir

EXIT_CHECK_FAILED = 1
EXIT_CONFIGURATION = 78


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Start, stop or show the development stores: a server for each shard whose url is `embedded`.

    They run in the background and keep their data under var/stores until it is deleted.
    """


@store.command()
def start() -> None:
    """Start the stores that do not run yet; each answers when this returns."""
    for shard, server in _servers().items():
        found = server.running
        server.start()
        click.echo(f"{shard}: {'runs already' if found else 'started'}, pid {server.pid}, {server.url}")


@store.command()
def stop() -> None:
    """Stop the stores in order; their data stays."""
    for shard, server in _servers().items():
        found = server.running
        server.stop()
        click.echo(f"{shard}: {'stopped' if found else 'did not run'}; its data is in {server.data_dir}")


@store.command()
def status() -> None:
    """Show each store; the exit status is 1 unless all of them run."""
    servers = _servers()
    for shard, server in servers.items():
        click.echo(f"{shard}: {f'runs, pid {server.pid}, {server.url}' if server.running else 'does not run'}")
    if not all(server.running for server in servers.values()):
        sys.exit(EXIT_CHECK_FAILED)


def main() -> None:
    """Run the command line; exit 78 with every problem listed when the configuration does not hold."""
    try:
        store(prog_name="scripts/store")
    except ConfigurationError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_CONFIGURATION)


def _servers() -> Mapping[str, EmbeddedServer]:
    settings = load()
    embedded = [name for name, shard in settings.shards.items() if shard.url == "embedded"]
    if not embedded:
        click.echo("No shard in config/redis.yml has `url: embedded`, so there is nothing to do here.")
    return {name: EmbeddedServer(store_dir(settings.var_dir, name), detached=True) for name in embedded}
