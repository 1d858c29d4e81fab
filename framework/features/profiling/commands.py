"""``jobs profile``: list the profiles of jobs that the shards keep, and write one as a page."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from framework.command_line import EXIT_FAILED
from framework.features.profiling.store import JobProfile, read_profile, read_profiles
from framework.terminal.options import json_option, shard_option
from framework.terminal.output import display_path, echo, reports_errors, write_all
from framework.terminal.shards import ShardCommand, ShardTable
from framework.text import format_age


class _Profiles(ShardTable[JobProfile]):
    field = "profiles"
    headings = ("JID", "CLASS", "AGE", "DURATION", "ERROR")

    def row(self, one: JobProfile, now: float) -> Sequence[str]:
        return one.jid, one.cls, format_age(now, one.at), f"{one.duration_s:.3f} s", one.error

    def facts(self, one: JobProfile) -> Mapping[str, Any]:
        return {
            "shard": one.shard,
            "jid": one.jid,
            "class": one.cls,
            "at": one.at,
            "duration_s": one.duration_s,
            "error": one.error or None,
            "bytes": one.page_bytes,
        }


_PROFILES = _Profiles()


@click.command("profile")
@click.argument("jid", required=False, metavar="[JID]")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the page to FILE instead of JID.html.",
)
@shard_option
@json_option
@reports_errors
def profile(jid: str | None, output: Path | None, *, names: Sequence[str], as_json: bool) -> None:
    """Write the profile of the job JID as a page of HTML; without JID, list the kept profiles.

    A job is profiled if it is pushed with set(profile=True). Each shard keeps the newest 20 profiles for a day.
    Status 1: there is no profile of the job, or the file cannot be written.
    """
    on = ShardCommand(names)
    if jid is None:
        if output is not None:
            raise click.UsageError("--output needs the JID of a job")
        on.show_all(
            _PROFILES, lambda shard: read_profiles(shard.client, shard.name), "No profile is kept", as_json=as_json
        )
    else:
        _write(on, jid, output, as_json=as_json)
        on.exit_if_unanswered()


def _write(on: ShardCommand, jid: str, output: Path | None, *, as_json: bool) -> None:
    found = [one for _, one in on.each(lambda shard: read_profile(shard.client, shard.name, jid)) if one is not None]
    if not found:
        echo(
            f"No profile of {jid} is kept. The job has not run yet, was not pushed with set(profile=True), or ran more than a "
            "day or 20 profiles ago; a log line profile.not_kept says why a run was not profiled.",
            err=True,
        )
        sys.exit(EXIT_FAILED)
    # The newest: a job that went to another shard may have run on both.
    one = max(found, key=lambda kept: kept.at)
    try:
        html = one.html
    except ValueError as error:
        echo(f"The profile of {jid} on {one.shard} cannot be read: {error}. Push the job again.", err=True)
        sys.exit(EXIT_FAILED)
    # Ids of other producers may be any text.
    path = output or Path(re.sub(r"[^\w.-]", "_", jid) + ".html")
    write_all({path: html})
    # It shows the code of the application, and what its jobs do.
    path.chmod(0o600)
    if as_json:
        on.print_json({"profile": _PROFILES.facts(one), "file": str(path)})
    else:
        echo(f"{display_path(path)}: {one.cls} {jid} on {one.shard}, {one.duration_s:.3f} s. Open it in a browser.")
