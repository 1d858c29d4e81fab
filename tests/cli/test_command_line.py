"""Test that messages name a command by the form in which it was started.

Forms: the console script, ``python -m framework``, a launcher of the checkout, a library.
"""

import sys
from pathlib import Path

import pytest

from framework import command_line
from framework.command_line import (
    command,
    remedy_command,
    use_manage_py,
    use_modules,
    with_local_commands,
    worker_command,
)
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
    group = site.start(*program, "default", "--timeout", "1", "--health-port", "0")
    assert f"run {named} and commit" in group.line(event_name="queues.stale")["message"]
    group.line(event_name="process.ready")
    assert group.end() == 0
    # The supervisor gives its children variables, which they know.
    assert not group.find(event_name="config.unknown_variable")


def test_library_names_the_installed_command():
    assert command("jobs resume AWorker") == "application-worker jobs resume AWorker"
    assert with_local_commands("run `application-worker generate-queues`") == "run `application-worker generate-queues`"


@pytest.fixture
def invocation(monkeypatch, tmp_path):
    """Forget the facts about this process afterwards; its working folder is empty."""
    invocation = command_line._Invocation
    for name in ("from_checkout", "in_django", "modules"):
        monkeypatch.setattr(invocation, name, getattr(invocation, name))
    monkeypatch.delenv("FRAMEWORK_CONFIG_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


def test_remedy_can_be_pasted(invocation, monkeypatch):
    """Names come from payloads, which any program may have written: a shell must not read them as commands."""
    use_modules(["shop.jobs"])
    assert remedy_command("jobs", "retry", "x; reboot") == "application-worker jobs retry 'x; reboot'"
    assert (
        remedy_command("jobs", "resume", "Mail", loads_classes=True)
        == "application-worker jobs resume Mail -r shop.jobs"
    )
    assert worker_command("-q", "mail") == "application-worker worker -r shop.jobs -q mail"
    assert worker_command("-q", "mail", modules=[]) == "application-worker worker -q mail"
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", "config")
    assert remedy_command("jobs", "held") == "application-worker jobs held"
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", "my config")
    assert remedy_command("jobs", "held") == "FRAMEWORK_CONFIG_DIR='my config' application-worker jobs held"


def test_worker_of_a_django_project_is_started_by_manage_py(invocation):
    use_modules(["framework.integrations.django.all_jobs"])
    use_manage_py()
    assert worker_command("-q", "mail") == "python manage.py worker -q mail"
