"""``audit``: show the actions of operators, from the audit log of each shard."""

import time
from collections.abc import Sequence
from dataclasses import asdict

import click

from framework.admin.audit import AuditRecord, read_audit_log
from framework.terminal.options import DurationOption, json_option, shard_option
from framework.terminal.output import reports_errors
from framework.terminal.shards import ShardCommand, ShardTable
from framework.text import format_age


@click.command("audit")
@click.option("--since", type=DurationOption(), help="Show actions of this time: 90s, 15m, 2h, 1d or 1h30m.")
@click.option("--actor", metavar="TEXT", default="", help="Show actions of operators with this text in their name.")
@click.option("--action", metavar="TEXT", default="", help="Show actions with this text in their name, such as pause.")
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="Show at most this number."
)
@shard_option
@json_option
@reports_errors
def audit(*, since: float | None, actor: str, action: str, limit: int, names: Sequence[str], as_json: bool) -> None:
    """Show the actions of operators, by commands, framework.admin and the dashboard, the newest first.

    A record is written before its action. An action with the end `unknown` goes on, or its process died: it may have been carried
    out. Each shard keeps its last 10,000 actions, for 90 days.

    Status 1: a shard does not answer.
    """
    on = ShardCommand(names)
    found = on.read(lambda shard: read_audit_log(shard, since, actor, action, limit))
    shown = sorted(found, key=lambda row: row.one.at, reverse=True)[:limit]
    on.show(_Records().of(shown, "No action is recorded"), as_json=as_json)
    on.exit_if_unanswered()


class _Records(ShardTable[AuditRecord]):
    field = "actions"
    headings = ("TIME (UTC)", "AGO", "BY", "FROM", "ACTION", "WHAT", "COUNT", "END")

    def row(self, one: AuditRecord, now: float) -> Sequence[str]:
        what = " ".join(f"{name}={value}" for name, value in one.what.items())
        count = "-" if one.count is None else f"{one.count:,}"
        return (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.at)),
            format_age(now, one.at),
            one.actor,
            f"{one.source} {one.address}".rstrip(),
            one.action,
            what,
            count,
            f"failed ({one.error})" if one.error else one.end,
        )

    def facts(self, one: AuditRecord) -> dict[str, object]:
        return asdict(one)
