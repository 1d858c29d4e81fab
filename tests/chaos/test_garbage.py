"""Garbage in every key: processes stay alive and go on with their work; commands print lines and no traceback."""

import re
import shutil
from pathlib import Path

import pytest

from framework import timings
from tests.chaos import garbage
from tests.harness import Site, until
from tests.reference_pages import text_of

PUSH = """
import sys, framework
import garbage_jobs as jobs
for kind in jobs.KINDS:
    for value in sys.argv[1:]:
        try:
            kind.perform_async(value)
        except framework.FrameworkError as error:
            print(kind.__name__, error)
"""

SCALE = 0.2
HURRIED = f"""
from framework import timings
timings.use(timings.STANDARD.scaled({SCALE}))
from framework.cli.worker import main
main()
"""

COMMANDS = (
    "jobs stats", "jobs queues", "jobs processes", "jobs list queue:work", "jobs list queue:broken",
    "jobs list scheduled", "jobs list retry", "jobs list dead", "jobs list interrupted", "jobs list held", "jobs held", "jobs paused",
    "jobs flags", "jobs limits list", "jobs locks list", "jobs leases list", "jobs counters", "jobs deferred list", "jobs profile",
    "jobs profile {jid}", "jobs show {jid}", "jobs explain {jid}", "jobs explain LimitedWorker", "jobs workflow {wid}", "jobs ping",
    "jobs story {jid}", "batches list", "batches show {bid}", "workflows list", "flags list", "cron list", "cron next TickWorker",
    "cron history TickWorker", "cron leader", "limiters list", "limiters show garbage", "retired", "top --once",
)  # fmt: skip


def start(site):
    return site.start("-c", HURRIED, "-r", "garbage_jobs", "-q", "work", "-c", "5").ready()


def test_garbage_covers_every_key_of_the_reference():
    page = text_of("Keys").replace("\\|", "|")
    rows = re.findall(r"^\| (`.+?`) \| [^|`].*$", page, re.MULTILINE)
    listed = {re.sub(r"[A-Z]+", "*", name) for row in rows for name in re.findall(r"`([^`]+)`", row)}
    covered = {re.sub(r"\{\w+\}", "*", name) for names in garbage.KINDS.values() for name in names}
    # Parts that may be empty, or of a fixed name in the table.
    covered |= {name + "*" for name in covered if name.endswith(":")} | {
        "aw:workflow:*:jobs:*",
        "queue:*~*",
        "aw:working:*/*",
    }
    minutes = {"*-*-*:*", "h|*-*-*:*", "j|*|*:*", "aw:urgencies:*|*:*", "aw:waits:*|*|*:*"}
    assert listed - covered - minutes == set()


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(1_800)
# A member of `processes` is the name of a key, as Sidekiq has it: garbage there asks for keys that no role may read.
@pytest.mark.refused("role-worker *", "role-operator *")
def test_garbage_in_every_key_ends_no_process_and_no_command(short_path, make_server):
    server = make_server()
    site = Site(short_path, server.url, warm=True)
    shutil.copy(Path(__file__).with_name("garbage_jobs.py"), short_path / "garbage_jobs.py")
    site.write("application.yml", {"workers_module": ["garbage_jobs"]})
    client = server.open(read_timeout_s=30)
    processes = [start(site), start(site)]
    leader = until(lambda: client.keys("aw:leader:*"), "a process leads")[0].decode()
    known = {"id": garbage.IDENTITY, "cls": "LimitedWorker", "jid": "a" * 24, "bid": "aw-" + "b" * 12, "wid": "wf-" + "w" * 12,
             "digest": "d" * 64, "queue": "broken", "limiter": "garbage",
             "date": "260101", "app": leader.removeprefix("aw:leader:")}  # fmt: skip
    faults = []
    for name, put in garbage.garbage(lambda key: key.format(**known)):
        put(client)
        done = site.run("-c", PUSH, name, "batch")
        if done.returncode:
            faults.append((name, "push", done.stderr))
        begun = client.time()[0]
        for words in COMMANDS:
            done = site.run("-m", "framework", *words.format(**known).split())
            if done.returncode not in (0, 1) or "Traceback" in done.stderr:
                faults.append((name, words, done.stderr[-1_500:] or done.stdout[-1_500:]))
        # The dose of garbage: twice the longest period of a process.
        dose_s = 2 * SCALE * timings.STANDARD.block_timeout_s
        until(lambda begun=begun, dose_s=dose_s: client.time()[0] > begun + dose_s, "all parts have read it")
        ended = [one for one in processes if one.popen.poll() is not None]
        faults += [(name, "process", "\n".join(one.deaths) or one.output) for one in ended]
        client.delete(*(key.format(**known) for names in garbage.KINDS.values() for key in names))
        processes = [start(site) if one in ended else one for one in processes]
        for one in ended:
            site.processes.remove(one)
    # With the garbage away, each process goes on with all of its work.
    site.run("-c", PUSH, "last")
    expected = {f"{kind} last" for kind in garbage.WORKERS}
    until(lambda: expected <= {one.decode() for one in client.lrange("proof:runs", 0, -1)}, "jobs of all classes run")
    assert not faults, "\n\n".join(map(str, faults))
    assert [one.end() for one in processes] == [0, 0]
