"""Measure what commands take of Redis while a million jobs wait in one place: the longest call, the share of its time, the seconds.

    nice scripts/test tests/admin/test_long_scripts.py::test_command_holds_redis_briefly

For each command a script fills one place with jobs. ``LONG_SCRIPTS_JOBS`` is another number of jobs. The table is
``var/campaigns/long_scripts.txt``. The server's thread gets real-time priority where that is allowed, so that other programs of the
machine do not count as its own time; the table says whether it was.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from framework.wire import keys
from framework.wire.job import DEFERRED, DEFERRED_BY
from tests.harness import Site, payload
from tests.harness import encoded as encoded_job

JOBS = int(os.environ.get("LONG_SCRIPTS_JOBS", "1000000"))
TABLE = Path("var") / "campaigns" / "long_scripts.txt"
WANTED, ABSENT = "j5000", "jabsent"

LONGEST_US = 5_000
LONGER_CALLS = 5
"""The most calls that may take longer: the machine itself may stop for some milliseconds."""

MOST_SHARE = 0.25
"""The most of Redis's time for moves: a fifth, and what the last step before a wait takes."""

FILL = """
local start, count, head, tail, line = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local words = {}
for i = start, start + count - 1 do
  local job = line .. head .. 'j' .. i .. tail
  if ARGV[6] == '' then
    words[#words + 1] = job
  else
    words[#words + 1] = ARGV[6] + i / 1000
    words[#words + 1] = job
  end
end
return redis.call(ARGV[6] == '' and 'LPUSH' or 'ZADD', KEYS[1], unpack(words))
"""


def fill(client, key, *, line="", score="", **fields):
    """Put the jobs into a list, or with ``score`` into a sorted set, each behind ``line``."""
    body = payload("NoopWorker", args=["x" * 150, {"some": "argument", "of": 1}], **fields)
    head, tail = encoded_job("NoopWorker", **body | {"jid": "JID"}).decode().split("JID")
    script = client.register_script(FILL)
    for start in range(0, JOBS, 2_000):
        script(keys=[key], args=[start, min(2_000, JOBS - start), head, tail, line, score])


def queue(client):
    client.sadd(keys.QUEUES, "default")
    fill(client, keys.queue("default"))


def scheduled(client):
    fill(client, keys.SCHEDULE, score=time.time() + 36_000)


def deferred(client):
    fill(client, keys.SCHEDULE, score=time.time() + 36_000, **{DEFERRED: 3, DEFERRED_BY: "flag"})


def retry(client):
    fill(client, keys.RETRY, score=time.time() + 36_000, error_class="E", error_message="wrong", retry_count=3)


def dead(client):
    fill(client, keys.DEAD, score=time.time() - 36_000, error_class="E", error_message="wrong", failed_at=time.time())


def paused(client):
    client.sadd(keys.PAUSED_CLASSES, "NoopWorker")
    fill(client, keys.paused_jobs("NoopWorker"), line='["default"]\n', score=time.time() - 36_000)


def limited(client):
    base = keys.limit("NoopWorker")
    client.sadd(keys.LIMITS, base)
    client.sadd(keys.LIMITS_WAITING, base)
    client.hset(base, mapping={"limit": 5, "share": 0, "known": time.time()})
    client.zadd(f"{base}:turns", {"": 1})
    fill(client, f"{base}:waiting:", line='["default","jid"]\n', score=time.time() - 36_000)


class Case(NamedTuple):
    """A place with the jobs, a command, and whether the command reads or moves them."""

    place: Callable[..., None]
    command: str
    moves: bool = False


CASES = (
    Case(queue, f"jobs explain {WANTED}"),
    Case(queue, f"jobs explain {ABSENT}"),
    Case(queue, "jobs list queue:default --text nowhere"),
    Case(queue, "jobs list queue:default --class Other"),
    Case(queue, "jobs top queue:default"),
    Case(queue, "jobs explain NoopWorker -r jobs"),
    Case(queue, "jobs cancel --class Other --yes"),
    Case(queue, "jobs cancel --class NoopWorker --yes --time-limit 10m", moves=True),
    Case(queue, "jobs clear default --yes", moves=True),
    Case(queue, "jobs clear default --yes --class Other"),
    Case(queue, "migrate-jobs queued --class NoopWorker --to other -r jobs", moves=True),
    Case(queue, "migrate-jobs queued --class Other --to other -r jobs"),
    Case(scheduled, f"jobs explain {WANTED}"),
    Case(scheduled, "jobs list scheduled --text nowhere"),
    Case(scheduled, "jobs delete --in scheduled --all --yes --time-limit 10m", moves=True),
    Case(scheduled, "migrate-jobs scheduled --class NoopWorker --to other -r jobs", moves=True),
    Case(deferred, "jobs deferred show"),
    Case(deferred, "jobs deferred run-now NoopWorker --rate 1000000 -r jobs", moves=True),
    Case(retry, "jobs retry --in retry --all --yes --time-limit 10m", moves=True),
    Case(retry, "jobs kill --all --yes --time-limit 10m", moves=True),
    Case(dead, "jobs retry --all --yes --time-limit 10m", moves=True),
    Case(dead, "jobs delete --in dead --class Other --yes --time-limit 10m"),
    Case(paused, f"jobs explain {WANTED}"),
    Case(paused, "jobs list held --text nowhere"),
    Case(paused, "jobs resume NoopWorker -r jobs", moves=True),
    Case(paused, "jobs cancel --class NoopWorker --yes --time-limit 10m", moves=True),
    Case(limited, "jobs limits show"),
    Case(limited, "jobs limits set NoopWorker 0 --reason test --for 1h -r jobs", moves=True),
    Case(limited, "jobs held drop --class NoopWorker --yes --time-limit 10m", moves=True),
)


def used_s(client):
    found = client.info("cpu")
    return found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
@pytest.mark.proves("R55")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.place.__name__}: {case.command}"[:60])
def test_command_holds_redis_briefly(case, short_path, make_server, record_property):
    server = make_server()
    is_first = False
    with suppress(PermissionError):
        os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(1))
        is_first = True
    site = Site(short_path, server.url, warm=True)
    with server.open(read_timeout_s=60) as client:
        client.config_set("appendonly", "no")
        case.place(client)
        # The first command of a test run waits for the fork server.
        site.run("-m", "framework", "jobs", "limits", "show", timeout_s=900)
        client.config_set("slowlog-log-slower-than", 1_000)
        client.config_set("slowlog-max-len", 20_000)
        client.slowlog_reset()
        before_s, began = used_s(client), time.monotonic()
        done = site.run("-m", "framework", *case.command.split(), timeout_s=900)
        took_s = time.monotonic() - began
        redis_s = used_s(client) - before_s
        # The log has its own commands, too.
        slow = [entry for entry in client.slowlog_get(20_000) if not entry["command"].startswith(b"SLOWLOG")]
    longest = max(slow, key=lambda entry: entry["duration"], default={"duration": 0, "command": b""})
    over = sum(entry["duration"] > LONGEST_US for entry in slow)
    words = [word.decode(errors="replace")[:12] for word in longest["command"].split(b" ")[:3]]
    row = (
        f"{case.place.__name__:<10}{took_s:8.1f} s {redis_s:7.2f} s {redis_s / took_s:6.0%} {longest['duration'] / 1000:8.2f} ms"
        f" {over:5} over  {'first' if is_first else 'shared':<7}{case.command[:70]}  [{' '.join(words)}] {done.returncode}\n"
    )
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    with TABLE.open("a") as table:
        table.write(row)
    for name, figure in (("seconds", took_s), ("share", redis_s / took_s), ("longest_us", longest["duration"])):
        record_property(name, round(figure, 3))
    assert done.returncode in (0, 1), done.stderr
    assert over <= LONGER_CALLS or not is_first
    assert not case.moves or redis_s / took_s <= MOST_SHARE
