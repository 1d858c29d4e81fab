"""``check-compat``: check whether a deploy would break jobs of the last release, and write the manifest of releases."""

import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from framework.command_line import EXIT_FAILED, command
from framework.devtools.compat import manifest
from framework.devtools.compat.compare import compare_with, count_findings, snapshot_of
from framework.devtools.compat.findings import CompatFinding
from framework.devtools.compat.manifest import Manifest
from framework.errors import ConfigurationError, ConfigurationProblem
from framework.terminal.options import REASON_HELP, json_option, modules_option
from framework.terminal.output import (
    display_path,
    echo,
    echo_json,
    echo_text,
    refuse_unknown,
    reports_errors,
    unknown_worker_message,
    write_all,
)
from framework.terminal.project import Project, load_project


@click.command("check-compat")
@click.option(
    "--against", metavar="FILE|REVISION", help="Compare with this manifest, or with the one of a git revision."
)
@json_option
@click.option(
    "--release",
    metavar="NAME",
    help="Write today's workers as this release. The command refuses when jobs would break.",
)
@click.option(
    "--accept",
    metavar="WORKER",
    help="Write this worker into the manifest as it is today: no job of its former kind is left. Needs --reason.",
)
@click.option("--reason", metavar="TEXT", help=REASON_HELP)
@modules_option
@reports_errors
def check_compat(
    *,
    against: str | None,
    as_json: bool,
    release: str | None,
    accept: str | None,
    reason: str | None,
    modules: Sequence[str],
) -> None:
    """Compare the workers with the manifest of the last release, released.yml.

    The exit status is 1 when jobs of that release would break.
    """
    _refuse_combinations(against, release, accept, reason, as_json=as_json)
    project = load_project(modules)
    day = datetime.now().astimezone().date()
    today = snapshot_of(project, release or "today", day)
    path = project.released
    if release is not None:
        last = manifest.read_manifest(path, display_path(path))
        _refuse_breaking(project, last, today)
        _write(path, manifest.next_manifest(today, last))
    elif accept is not None:
        last = _read(path)
        refuse_unknown([accept], {**last.workers, **last.retired}, unknown_worker_message)
        now = manifest.next_manifest(today, last)
        _write(path, manifest.accept_worker(last, now, accept, reason or ""))
    else:
        last = _read(path) if against is None else _read_against(against, path)
        _report(last, compare_with(project, last, today), len(today.workers), as_json=as_json)


def _refuse_combinations(
    against: str | None, release: str | None, accept: str | None, reason: str | None, *, as_json: bool
) -> None:
    asked = [
        name
        for name, value in (("--against", against), ("--release", release), ("--accept", accept))
        if value is not None
    ]
    if len(asked) > 1:
        raise click.UsageError(f"{' and '.join(asked)} do not go together.")
    if release == "":
        raise click.UsageError("--release needs a NAME.")
    if (accept is None) != (reason is None) or reason == "":
        raise click.UsageError(
            "--accept WORKER needs --reason TEXT, and --reason needs --accept: the reason says why no such job is left."
        )
    if as_json and (release is not None or accept is not None):
        raise click.UsageError("--json needs a check: it does not go with --release or --accept.")


def _refuse_breaking(project: Project, last: Manifest | None, today: Manifest) -> None:
    found = [] if last is None else [one for one in compare_with(project, last, today) if one.fails]
    for finding in found:
        echo_text(str(finding), err=True)
    if found:
        echo(f"Nothing was written: jobs of release {last.release if last else ''} would break.", err=True)
        sys.exit(EXIT_FAILED)


def _write(path: Path, content: Manifest) -> None:
    schema = path.with_name(manifest.SCHEMA_NAME)
    texts = {path: manifest.manifest_text(content), schema: json.dumps(manifest.manifest_schema(), indent=2) + "\n"}
    write_all(texts)
    for written in texts:
        echo(f"wrote {display_path(written)}")


def _read(path: Path) -> Manifest:
    found = manifest.read_manifest(path, display_path(path))
    if found is None:
        first = command("check-compat --release NAME")
        message = f"does not exist, so no release is known. Write the first with `{first}` and commit it"
        raise ConfigurationError([ConfigurationProblem(display_path(path), "", message)])
    return found


def _read_against(against: str, path: Path) -> Manifest:
    """Read the manifest of a file or of a git revision."""
    if Path(against).is_file():
        return _read(Path(against))
    command = ["git", "-C", str(path.parent), "show", f"{against}:./{path.name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.UsageError(f"--against {against}: no such file, and git failed: {error}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git gave no reason"])[-1]
        raise click.UsageError(
            f"--against {against}: no such file, and no manifest in a revision of that name ({reason})"
        )
    return manifest.parse_manifest(done.stdout, f"{against}:{path.name}")


def _report(last: Manifest, found: Sequence[CompatFinding], workers: int, *, as_json: bool) -> None:
    counts = count_findings(found)
    if as_json:
        echo_json({"release": last.release, "workers": workers, **counts, "found": [one.to_json() for one in found]})
    else:
        for finding in found:
            echo_text(str(finding))
        words = ", ".join(f"{count} {name.removesuffix('s') if count == 1 else name}" for name, count in counts.items())
        echo(
            f"{workers} {'worker' if workers == 1 else 'workers'} against release {last.release} of {last.day}: {words}"
        )
    if counts["findings"]:
        sys.exit(EXIT_FAILED)
