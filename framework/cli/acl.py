"""``acl``: print the least rights of a Redis user by role, as an ACL command or file line."""

import hashlib
import sys

import click

from framework.exit_codes import EXIT_USAGE
from framework.store.rights import ROLES, Role
from framework.terminal.output import columns, echo, echo_lines, echo_whole, reports_errors


@click.command("acl")
@click.argument("role", type=click.Choice(sorted(ROLES)), required=False)
@click.option("--user", metavar="NAME", help="Give the rights to this user. Default: the name of the role.")
@click.option("--file", "as_file", is_flag=True, help="Print a line of an ACL file instead of a command.")
@click.option(
    "--password-stdin",
    "with_password",
    is_flag=True,
    help="Read the user's password from stdin, and print its SHA-256.",
)
@reports_errors
def acl(role: str | None, user: str | None, *, as_file: bool, with_password: bool) -> None:
    """Print the redis-cli command that gives a Redis user the least rights of a role.

    Redis 6.2 and later, and Valkey, accept this command. It changes no password.

    Without ROLE, list the roles.
    """
    if role is None:
        echo_lines(columns([("ROLE", "USE"), *((one.name, one.purpose) for one in ROLES.values())]))
        return
    if user is not None and (not user or not user.isprintable() or " " in user):
        raise click.UsageError("--user NAME must be one printable word: Redis allows no spaces in a user name.")
    echo_whole([acl_line(ROLES[role], user or role, as_file=as_file, rules=_password_rules() if with_password else ())])


def acl_line(role: Role, user: str, *, as_file: bool = False, rules: tuple[str, ...] = ()) -> str:
    """Return the line that gives ``user`` the rights of ``role``, and these further rules."""
    return " ".join([*(("user",) if as_file else ("ACL", "SETUSER")), user, *role.rules, *rules])


def _password_rules() -> tuple[str, ...]:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        echo("--password-stdin: stdin is empty; give the password there.", err=True)
        sys.exit(EXIT_USAGE)
    return ("#" + hashlib.sha256(password.encode()).hexdigest(),)
