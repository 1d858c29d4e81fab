"""``pushes``: show the pushes that producers keep in files while Redis is down, and replay those of ended processes."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from framework.all_settings import load
from framework.command_line import EXIT_FAILED, command
from framework.features.reliable_push.kept_files import KeptFile, KeptFiles
from framework.features.reliable_push.reliable_push import open_reliable_push
from framework.private_files import check_folder
from framework.shard.shards import open_shards
from framework.terminal.groups import CommandGroup
from framework.terminal.options import json_option
from framework.terminal.output import columns, echo, echo_json, echo_lines, reports_errors
from framework.text import format_age, format_count

_HEADINGS = ("FILE", "PROCESS", "SHARDS", "JOBS", "BYTES", "OLDEST", "STATE")


@click.group("pushes", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def pushes() -> None:
    """Show and replay the pushes that producers keep in files while Redis is down (setting reliable_push)."""


@pushes.command("list")
@json_option
@reports_errors
def list_pushes(*, as_json: bool) -> None:
    """List the files of kept pushes on this host.

    A running process replays its file by itself. The file of an ended process waits for the next start of a process with the same
    folder, or for `pushes replay`.

    Status 1: a file cannot be read, or is damaged; or other users may write into the folder, so that its files are not used.
    """
    folder = load().pushes_dir
    found = [_facts(one) for one in KeptFiles().read(folder)]
    if as_json:
        echo_json({"folder": str(folder), "files": found})
    elif found:
        echo_lines(columns([_HEADINGS, *map(_row, found)]))
    else:
        echo(f"No push is kept in {folder}.")
    if any(one["problem"] for one in found):
        sys.exit(EXIT_FAILED)


@pushes.command("replay")
@json_option
@reports_errors
def replay_pushes(*, as_json: bool) -> None:
    """Push the jobs of ended processes, in the order in which they were kept.

    Files of running processes are left to them.

    Status 1: jobs of ended processes are left, because a shard does not answer or refuses them; or other users may write into the
    folder, so that its files are not used.
    """
    settings = load()
    check_folder(settings.pushes_dir)
    shards = open_shards(settings, role="pushes")
    kept = open_reliable_push(settings, shards)
    result = kept.replay()
    left, _ = kept.kept
    kept.close()
    down = sorted(result.down)
    if as_json:
        echo_json({"pushed": result.written, "found": result.found, "left": left, "unanswered": down})
    else:
        found, rest = result.found, "is" if left == 1 else "are"
        already = f"{found:,} {'was' if found == 1 else 'were'} in Redis already"
        echo(f"{format_count(result.written, 'job')} pushed, {already}, {left:,} {rest} left.")
    for name in down:
        echo(f"shard {name!r} does not answer: run `{command('pushes replay')}` again when it does.", err=True)
    for name, queue in sorted(result.refused):
        echo(f"shard {name!r}, queue {queue!r}: the jobs are refused, and stay in their file. See the log.", err=True)
    shards.close()
    if left:
        sys.exit(EXIT_FAILED)


def _facts(one: KeptFile) -> dict[str, Any]:
    oldest_at = min((kept.oldest_at for kept in one.kept.values()), default=None)
    return {
        "file": str(one.path),
        "process": one.process,
        "running": one.is_running,
        "shards": sorted({shard for shard, _ in one.kept}),
        "jobs": sum(kept.jobs for kept in one.kept.values()),
        "bytes": one.size,
        "oldest_s": None if oldest_at is None else time.time() - oldest_at,
        "problem": one.problem,
    }


def _row(one: Mapping[str, Any]) -> tuple[str, ...]:
    oldest_s = one["oldest_s"]
    age = "-" if oldest_s is None else format_age(oldest_s, 0.0)
    state = one["problem"] or ("its process runs" if one["running"] else "its process has ended")
    shards = ", ".join(one["shards"]) or "-"
    return Path(one["file"]).name, one["process"], shards, f"{one['jobs']:,}", f"{one['bytes']:,}", age, state
