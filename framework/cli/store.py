"""``store``: start, stop and show the development stores, one server per shard with ``url: embedded``; ``acl``: print rights."""

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence

import click

from framework.all_settings import Settings, load
from framework.command_line import EXIT_FAILED, EXIT_USAGE
from framework.route.router import MAIN
from framework.settings.model import DEFAULT_URL
from framework.settings.shard import ShardSettings
from framework.settings.urls import is_hash_tag
from framework.store.embedded import EmbeddedServer, development_stores, store_dir
from framework.store.key_prefix import key_prefix
from framework.store.rights import ROLES, Role
from framework.terminal.groups import CommandGroup, run_from_checkout
from framework.terminal.output import columns, echo, echo_lines, echo_whole, reports_errors


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def store() -> None:
    """Start, stop or show the development stores.

    A store is a Valkey or Redis server for one shard. There is one for each shard whose url is `embedded` in config/redis.yml,
    and for the shard main if nothing names a Redis server. Stores run in the background and keep their data under var/stores
    until it is deleted.
    """


@store.command()
@reports_errors
def start() -> None:
    """Start the stores that do not run yet, and wait until each answers.

    When neither config/redis.yml nor REDIS_URL names a Redis, the command starts one store and prints the
    line that makes it known to other programs.
    """
    settings = load()
    for shard, server in _servers(settings).items():
        found = server.running
        server.start()
        echo(f"{shard}: {'runs already' if found else 'started'}, pid {server.pid}, {server.url}")
        if shard == MAIN and _redis_not_configured(settings):
            _print_setup_hint(settings, server.url)


@store.command()
@reports_errors
def stop() -> None:
    """Stop the stores in order; their data stays."""
    for shard, server in _servers(load()).items():
        found = server.running
        server.stop()
        echo(f"{shard}: {'stopped' if found else 'did not run'}; its data is in {server.data_dir}")


@store.command()
@reports_errors
def status() -> None:
    """Show each store. The exit status is 1 unless all of them run."""
    servers = _servers(load())
    for shard, server in servers.items():
        echo(f"{shard}: {f'runs, pid {server.pid}, {server.url}' if server.running else 'does not run'}")
    if not all(server.running for server in servers.values()):
        sys.exit(EXIT_FAILED)


def main() -> None:
    run_from_checkout(store)


def _servers(settings: Settings) -> Mapping[str, EmbeddedServer]:
    if _redis_not_configured(settings):
        folder = store_dir(settings.var_dir, MAIN)
        return {MAIN: EmbeddedServer(folder, detached=True, source="the development store")}
    servers = development_stores(settings)
    if not servers:
        others, source = ", ".join(settings.shards), f"{settings.config_label}/redis.yml"
        echo(
            f"No shard has `url: embedded`, so there is no store to manage: {source} or REDIS_URL names the Redis of {others}."
        )
    return servers


def _redis_not_configured(settings: Settings) -> bool:
    """Return whether neither a file nor a variable names a Redis, so that programs use the built-in address."""
    configured = os.environ.get("REDIS_URL") or (settings.config_dir / "redis.yml").exists()
    return not configured and settings.shards == {MAIN: ShardSettings(url=DEFAULT_URL)}


def _print_setup_hint(settings: Settings, url: str) -> None:
    echo("Neither REDIS_URL nor a redis.yml names a Redis. To use this store, set in each shell:")
    echo_whole([f"  export REDIS_URL={shlex.quote(url)}"])
    echo(f"For all shells, write `shards: {{main: {{url: embedded}}}}` to {settings.config_label}/redis.yml.")


@click.command("acl")
@click.argument("role", type=click.Choice(sorted(ROLES)), required=False)
@click.option("--user", metavar="NAME", help="Give the rights to this user. Default: the name of the role.")
@click.option("--file", "as_file", is_flag=True, help="Print a line of an ACL file instead of a command.")
@click.option(
    "--hash-tag",
    "tags",
    metavar="TAG",
    multiple=True,
    help="The hash tag of a shard on a cluster: the name of the shard, unless its URL has another. Repeatable.",
)
@click.option(
    "--password-stdin",
    "with_password",
    is_flag=True,
    help="Read the user's password from stdin, and print its SHA-256.",
)
@reports_errors
def acl(role: str | None, user: str | None, *, as_file: bool, tags: tuple[str, ...], with_password: bool) -> None:
    """Print the redis-cli command that gives a Redis user the least rights of a role.

    Redis 6.2 and later, and Valkey, accept this command. It changes no password.

    Without ROLE, list the roles.
    """
    if role is None:
        echo_lines(columns([("ROLE", "USE"), *((one.name, one.purpose) for one in ROLES.values())]))
        return
    if user is not None and (not user or not user.isprintable() or " " in user):
        raise click.UsageError("--user NAME must be one printable word: Redis allows no spaces in a user name.")
    wrong = next((tag for tag in tags if not is_hash_tag(tag)), None)
    if wrong is not None:
        raise click.UsageError(f"--hash-tag TAG must have ASCII letters, digits, _, - and . only, not {wrong!r}.")
    rules = _password_rules() if with_password else ()
    echo_whole([acl_line(ROLES[role], user or role, as_file=as_file, rules=rules, tags=tags)])


def acl_line(
    role: Role, user: str, *, as_file: bool = False, rules: tuple[str, ...] = (), tags: Sequence[str] = ()
) -> str:
    """Return the line that gives ``user`` the rights of ``role``, and these further rules; ``tags``: of shards on a cluster."""
    granted = role.rules_for(*map(key_prefix, tags)) if tags else role.rules
    return " ".join([*(("user",) if as_file else ("ACL", "SETUSER")), user, *granted, *rules])


def _password_rules() -> tuple[str, ...]:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        echo("--password-stdin: stdin is empty; give the password there.", err=True)
        sys.exit(EXIT_USAGE)
    return ("#" + hashlib.sha256(password.encode()).hexdigest(),)
