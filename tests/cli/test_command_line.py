"""Test that messages name a command by the form in which it was started.

Forms: the console script, ``python -m framework``, a launcher of the checkout, a library.
"""

import sys
from pathlib import Path

import pytest

from framework.command_line import command, with_local_commands
from tests.harness import ROOT

CONSOLE = str(Path(sys.executable).parent / "application-worker")
STARTS = {
    "console": ((CONSOLE,), "application-worker {}"),
    "module": (("-m", "framework"), "application-worker {}"),
    "checkout": ((), "scripts/{}"),
}


@pytest.fixture(params=STARTS)
def started(request, site):
    """Return a function that runs a command in one form, and a function that gives the expected name of a command."""
    before, form = STARTS[request.param]

    def run(name, *arguments):
        launcher = () if before else (str(ROOT / "scripts" / name.replace("-", "_")),)
        return site.run(*before, *launcher, *([name] if before else []), *arguments)

    return run, lambda line: form.format(line if before else line.replace("-", "_", 1))


def test_message_names_the_command_as_started(started):
    run, form = started
    done = run("check-compat", "-r", "jobs")
    assert done.returncode == 78
    assert f"Write the first with `{form('check-compat')} --release NAME` and" in done.stderr


def test_usage_names_the_command_as_started(started):
    run, form = started
    assert run("generate-queues", "--help").stdout.startswith(f"Usage: {form('generate-queues')} [OPTIONS]")
    wrong = run("jobs", "explain")
    assert wrong.stderr.startswith(
        f"Usage: {form('jobs')} explain [OPTIONS] JID|WORKER\nTry '{form('jobs')} explain --help'"
    )


def test_catalog_text_names_commands_as_started(started):
    run, form = started
    printed = " ".join(run("attributes", "weight").stdout.split())
    assert f"`{form('generate-queues')}`" in printed


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ((str(ROOT / "scripts" / "cluster"),), "scripts/generate_queues"),
        ((CONSOLE, "cluster"), "application-worker generate-queues"),
    ],
)
def test_cluster_children_name_commands_as_the_cluster(site, program, named):
    site.write("application.yml", {"workers_module": "jobs"})
    group = site.start(*program, "default", "--timeout", "1")
    assert f"run {named} and commit" in group.line(event_name="queues.stale")["message"]
    assert group.end() == 0


def test_library_names_the_installed_command():
    assert command("jobs resume AWorker") == "application-worker jobs resume AWorker"
    assert with_local_commands("run `application-worker generate-queues`") == "run `application-worker generate-queues`"
