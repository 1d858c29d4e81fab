"""Check each role: no command is refused, and no granted right is unused.

One installation runs every operation of a producer, a worker and an operator: every state of a job, kill -9, stops, a cluster, the
commands of the command line. MONITOR shows the commands of each user.
"""

import json
import shutil
import signal
from pathlib import Path

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import port, registry
from framework.errors import BulkPushError
from framework.features.flags.flag import Flag, drop_flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.store import rights
from framework.store.connect import Endpoint, open_client
from framework.wire import keys
from framework.wiring.client import bind_default
from tests.harness import ROOT, Site, encoded, opened, until
from tests.process.census import Census
from tests.push.conftest import Pusher
from tests.servers.guarded import GuardedServer, as_role, with_all_rights
from tests.servers.proxy import Proxy
from tests.tables import each_row

QUICK = """
from dataclasses import replace
from framework import timings
timings.use(replace(timings.STANDARD, record_period_s=0.2, sweep_period_s=0.2))
from framework.cli.worker import main
main()
"""
PUSHES = """
from datetime import timedelta
from framework import cancel, flags, status
from jobs import *
flags.set("census")
flags.clear("census")
cancel("0" * 24)
jids = NoteWorker.perform_bulk([(str(number),) for number in range(3)])
NoteWorker.perform_async("now")
NoteWorker.perform_in(0.1, "soon")
NoteWorker.perform_bulk_in(0.1, [("a",), ("b",)])
for worker in (FlakyWorker, DoomedWorker, DroppedWorker, LaterWorker, PausedWorker, AsideWorker):
    worker.perform_async()
OneWorker.perform_bulk([()] * 6)
for key in (1, 1, 2):
    KeyedWorker.perform_async(key)
KeyedWorker.perform_in(0.2, 3)
for _ in range(2):
    DebouncedWorker.perform_async(3)
FairWorker.perform_async("a", 0)
FairWorker.set(priority="high").perform_bulk([("a", 1), ("b", 2), ("a", 3)])
FlaggedWorker.perform_async(4)
FewWorker.perform_with_capacity()
status.look_up(jids)
"""
BATCHES_AND_LIMITERS = {
    "+sscan": ("features/batches/store.py", "sscan_iter("),
    "script batches/change": ("features/batches/store.py", "CHANGE,"),
    "script workflows/change": ("features/workflows/store.py", "CHANGE,"),
    "script limiters/unlock": ("features/limiters/store.py", "UNLOCK"),
    "script leases/obtain": ("features/leases/store.py", "OBTAIN"),
    "script leases/renew": ("features/leases/store.py", "RENEW"),
}

UNSEEN = {"+acl|log": ("admin/diagnosis/of_server.py", '"ACL", "LOG"')}
"""MONITOR does not show commands of administrators."""

MARKS = {"~[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]-marks": ("features/history/marks.py", "deploy_marks(")}
PAGES = {
    **MARKS,
    "~h|*": ("features/history/series.py", "keys.histogram("),
    "~*-[0-9][0-9]-[0-9][0-9]:*": ("features/history/series.py", "keys.histogram("),
    "+xrevrange": ("admin/audit.py", "xrevrange("),
}
"""The dashboard and the audit log."""

MEASURING = {
    "+hstrlen": ("features/backlog/memory.py", "hstrlen("),
    "+memory|usage": ("features/backlog/memory.py", "memory_usage("),
    "+randomkey": ("features/backlog/memory.py", "randomkey("),
}
"""A shard is measured when it has more than a little, and a process is not young."""

ELSEWHERE: dict[str, dict[str, tuple[str, str]]] = {
    "producer": {
        **MARKS,
        "+hvals": ("features/moves/records.py", '"HVALS"'),
        "~aw:moves": ("features/moves/records.py", "keys.MOVES"),
        "script push_scheduled_counted": ("shard/shard.py", "PUSH_SCHEDULED_COUNTED"),
        "script push_fair_in_reserve": ("shard/shard.py", "PUSH_FAIR_IN_RESERVE"),
        "~aw:accepted_bytes": ("features/backlog/scripts/parts/accepted.lua", "'aw:accepted_bytes'"),
        "~aw:accepted_jobs": ("features/backlog/scripts/parts/accepted.lua", "'aw:accepted_jobs'"),
        "~aw:memory": ("shard/held_back.py", '"GET", MEMORY'),
        "+info": ("shard/held_back.py", '"INFO"'),
        "+unlink": ("shard/connection.py", "UNLINK"),
        "+hgetall": ("features/batches/store.py", "hgetall("),
        "+lpos": ("shard/shard.py", '"LPOS"'),
        "+scan": ("features/limiters/store.py", "scan_iter("),
        "+srem": ("features/batches/scripts/parts/batch.lua", "'SREM'"),
        "~aw:task_events": ("features/tasks/store.py", "keys.TASK_EVENTS"),
        "~aw:limiter:*": ("features/limiters/store.py", "keys.limiter("),
        "~aw:limiters": ("features/limiters/store.py", "keys.NAMES"),
        "~aw:exclusive_lease:*": ("features/leases/store.py", "keys.exclusive_lease("),
        "~aw:exclusive_leases": ("features/leases/store.py", "keys.EXCLUSIVE_LEASES"),
        "+pttl": ("features/leases/store.py", "pttl("),
        "+blpop": ("features/results/store.py", ".blpop("),
        "+lpop": ("features/results/store.py", ".lpop("),
        "~aw:result:*": ("features/results/store.py", "keys.result("),
        "~aw:result_calls:*": ("features/results/store.py", "result_calls("),
        "~aw:batch:*": ("features/batches/store.py", "batch_keys.batch("),
        "~aw:batch_events": ("features/batches/scripts/parts/batch.lua", "'aw:batch_events'"),
        "~aw:batches": ("features/batches/store.py", "batch_keys.BATCHES"),
        "~aw:workflow:*": ("features/workflows/store.py", "workflow_keys.workflow("),
        "~aw:workflows": ("features/workflows/store.py", "workflow_keys.WORKFLOWS"),
        "+rename": ("features/workflows/scripts/change.lua", "'RENAME'"),
        **BATCHES_AND_LIMITERS,
    },
    "worker": {
        **BATCHES_AND_LIMITERS,
        **MEASURING,
        **MARKS,
        "script read_hashes": ("store/hashes.py", "READ_HASHES("),
        "+renamenx": ("process/heartbeat.py", "renamenx("),
        "script moves/take": ("features/moves/mover.py", "TAKE("),
        "script moves/take_aside": ("features/moves/mover.py", "TAKE_ASIDE("),
        "script moves/take_held": ("features/moves/mover.py", "TAKE_HELD("),
        "script backlog/set_aside": ("features/backlog/aside.py", "SET_ASIDE("),
        "script backlog/return_aside": ("features/backlog/aside.py", "RETURN_ASIDE("),
        "script backlog/read_waiting": ("features/backlog/aside.py", "READ_WAITING("),
        "+lset": ("features/packing/scripts/pack.lua", "'LSET'"),
        "script packing/pack": ("features/packing/packer.py", "PACK("),
        "script packing/pack_held": ("features/packing/held_packer.py", "PACK_HELD("),
        "script packing/pack_deferred": ("features/packing/deferred_packer.py", "PACK_DEFERRED("),
        "script unpack_deferred": ("fetch/deferred_blocks.py", "UNPACK_DEFERRED("),
        "script return_block": ("fetch/blocks.py", "RETURN_BLOCK("),
        "script unpack_held": ("fetch/held_blocks.py", "UNPACK_HELD("),
        "script push_scheduled_counted": ("shard/shard.py", "PUSH_SCHEDULED_COUNTED"),
        "script push_fair_in_reserve": ("shard/shard.py", "PUSH_FAIR_IN_RESERVE"),
        "+blpop": ("features/results/store.py", ".blpop("),
        "+lpop": ("features/results/store.py", ".lpop("),
        "+zrank": ("admin/search.py", "zrank("),
        "+zscan": ("admin/search.py", "zscan("),
        "script search": ("admin/search.py", "SEARCH("),
        "script workflows/advance": ("features/workflows/store.py", "ADVANCE,"),
        "+rename": ("features/workflows/scripts/change.lua", "'RENAME'"),
        "script iteration/start": ("features/iteration/store.py", "START_ITERATION"),
        "script iteration/save": ("features/iteration/store.py", "SAVE_ITERATION"),
        "+unlink": ("shard/connection.py", "UNLINK"),
        "+client|unblock": ("fetch/blocking.py", "_unblock("),
        "script cron/lead": ("features/cron/leadership.py", "LEAD("),
        "script restore": ("recover/reaper.py", "RESTORE("),
        "script pause/release": ("features/pause/admission.py", "RELEASE_PAUSED("),
        "script set_status": ("finish/status_writer.py", "SET_STATUS("),
        "script deduplication/start_locked": ("features/deduplication/admission.py", "START_LOCKED("),
    },
    "operator": {
        **UNSEEN,
        **MEASURING,
        **PAGES,
        "script read_hashes": ("store/hashes.py", "READ_HASHES("),
        "script moves/take": ("features/moves/mover.py", "TAKE("),
        "script moves/take_aside": ("features/moves/mover.py", "TAKE_ASIDE("),
        "script moves/take_held": ("features/moves/mover.py", "TAKE_HELD("),
        "+linsert": ("store/scripts/split_block.lua", "'LINSERT'"),
        "+lpos": ("store/scripts/split_block.lua", "'LPOS'"),
        "+lset": ("store/scripts/split_block.lua", "'LSET'"),
        "script unpack_deferred": ("fetch/deferred_blocks.py", "UNPACK_DEFERRED("),
        "script split_block": ("fetch/blocks.py", "SPLIT_BLOCK("),
        "script unpack_held": ("fetch/held_blocks.py", "UNPACK_HELD("),
        "+hscan": ("features/flags/redis_flags.py", "hscan("),
        "script fairness/change_priority": ("features/fairness/admin.py", "CHANGE_PRIORITY("),
        "+watch": ("features/deduplication/admin.py", ".transaction("),
        "+unwatch": ("features/deduplication/admin.py", ".transaction("),
        "~j|*": ("admin/explain_class.py", "keys.metrics("),
        "+ttl": ("features/batches/store.py", "ttl("),
        "script batches/change": ("features/batches/store.py", "CHANGE,"),
        "script workflows/change": ("features/workflows/store.py", "CHANGE,"),
        "+rename": ("features/workflows/scripts/change.lua", "'RENAME'"),
        "+zrandmember": ("admin/groups.py", "zrandmember("),
    },
    "read-only": {
        **UNSEEN,
        **MEASURING,
        **PAGES,
        "+zrandmember": ("admin/groups.py", "zrandmember("),
        "+lindex": ("admin/groups.py", "lindex("),
        "+hscan": ("features/flags/redis_flags.py", "hscan("),
        "+ttl": ("features/batches/store.py", "ttl("),
        "+scard": ("features/batches/store.py", "scard("),
        "+zcount": ("features/limiters/scripts/parts/limiter.lua", "ZCOUNT"),
        "script limiters/read": ("features/limiters/admin.py", "READ("),
        "+hget": ("features/concurrency/limit_state.py", ".hget("),
        "+zrangebyscore": ("features/leases/store.py", "zrangebyscore("),
        "~j|*": ("admin/explain_class.py", "keys.metrics("),
    },
}
"""Rights that this run does not reach, and where the code is that needs each: a file, and words in it."""


@pytest.fixture
def server(short_path):
    """A path too long for a Unix socket: on TCP each connection has its own address."""
    with GuardedServer(short_path / ("x" * 100)) as made:
        yield made


@pytest.fixture
def site(server, short_path, redis_url):
    made = Site(short_path, f"redis://{server.url.rpartition('@')[2]}", warm=True)
    shutil.copy(Path(__file__).with_name("role_jobs.py"), short_path / "jobs.py")
    made.proofs_url = with_all_rights(redis_url)
    yield made
    made.close()


@pytest.fixture
def resumes():
    """Push in bulk with a lost reply, and resume, to a queue and to the schedule, as a role."""

    def push(url, role):
        with Proxy(url) as proxy, registry.isolated():
            shard = opened(as_role(proxy.url, role))
            Pusher({"main": shard})
            body = {"feature_category": "not_owned", "wire_name": "Absent", "queue": "resumed"}
            worker = type("Absent", (ApplicationWorker,), {**body, "perform": lambda self, number: None})
            for place, act in (
                (rb"\nqueue:resumed\r", worker.perform_bulk),
                (rb"\nschedule\r", lambda jobs: worker.perform_bulk_in(3_600, jobs)),
            ):
                act([(0,)])
                proxy.lose_replies(place, {1})
                with pytest.raises(BulkPushError) as caught:
                    act([(1,), (2,)])
                caught.value.resume()
            shard.close()
        on_another_database(url, role)

    yield push
    port.unbind()
    bind_default()


def produce(site, resumes):
    ended = site.run("-c", PUSHES)
    assert ended.returncode == 0, ended.stderr
    resumes(site.url, "producer")


def work(site, redis, client, resumes):
    """Run two processes, kill one of them during its jobs, and stop a child of a cluster."""
    set_flag(client, Flag(pause_flag("PausedWorker"), 100.0, "test"), None)
    set_flag(client, Flag(drop_flag("AsideWorker"), 100.0, "test"), None)
    options = ("-c", QUICK, "-r", "jobs", "-q", "default", "-c", "3")
    first = site.start(*options, "--health-port", "0", FRAMEWORK_FLEET__REPORTER="true").ready()
    ended = site.run("-c", PUSHES, role="worker")
    assert ended.returncode == 0, ended.stderr
    until(lambda: redis.llen("proof:note") == 14, "every note")
    until(lambda: redis.llen("proof:few") >= 5 and redis.exists("proof:flaky"))
    until(lambda: client.zcard(keys.DEAD) == 2, "the doomed")
    site.run("-c", "from jobs import *; PatientWorker.perform_async()", role="worker")
    (jid,) = until(lambda: redis.lrange("proof:patient", 0, -1))
    client.hset(keys.iteration(jid.decode()), "cancelled", 1)
    # The process has read it, and added a cursor, which goes with the job: only the line stays.
    first.line(jid=jid.decode(), job_status="cancelled")
    site.run("-c", "from jobs import *; HangWorker.perform_async()", role="worker")
    until(lambda: redis.llen("proof:hang") == 1)
    first.popen.send_signal(signal.SIGKILL)
    first.wait()
    second = site.start(*options, "-t", "1").ready()
    until(lambda: redis.llen("proof:hang") == 2, "taken back from the dead", 60)
    until(lambda: any("b" in one["flags"] for one in client.client_list()), "a blocking call")
    second.send(signal.SIGTSTP)
    second.line(event_name="process.quiet")
    assert second.end() == 0
    cluster = site.start("-m", "framework", "cluster", "default", "--processes", "1", "-r", "jobs").ready()
    until(lambda: redis.llen("proof:hang") == 3, "pushed back, and run again")
    redis.set("release:hang", 1)
    assert cluster.end() == 0
    resumes(site.url, "worker")


SHOWS = (
    "limits",
    "locks",
    "held",
    "paused",
    "deferred",
    "flags",
    "counters",
    "locks show KeyedWorker",
    "held show",
    *("stats", "stats --days 2", "queues", "list queue:old", "processes --work", "ping", "top dead", "top queues"),
)
CHANGES = (
    "held drop --class OneWorker --yes",  # first: the limit has a waiting job, which the commands below hand over
    *("pause PausedWorker --reason r --for 1h", "resume PausedWorker", "drop NoteWorker --reason r --for 1h"),
    *("defer NoteWorker --reason r --for 1h", "flags clear NoteWorker", "limits set OneWorker 3 --reason r --for 1h"),
    *(
        "limits clear OneWorker",
        "limits sweep OneWorker",
        "locks delete KeyedWorker [9]",
    ),
)


def on_another_database(url, role):
    with open_client(Endpoint(as_role(f"{url}/1", role)), name="another") as client:
        client.time()


def look(site, role):
    """Run the commands that only read; a job is in each place that they read."""
    jobs = str(ROOT / "scripts" / "jobs")
    for words in (
        *map(str.split, SHOWS),
        *(["explain", jid] for jid in ("waiting", "in-hand", "dead", "limited", "gone")),
    ):
        site.run(jobs, *words, role=role)
    on_another_database(site.url, role)
    site.run(str(ROOT / "scripts" / "route"), "--lint", "--live", "-r", "jobs", role=role)
    site.run(str(ROOT / "scripts" / "retired"), role=role, FRAMEWORK_RETIRED_WORKERS='{"Absent": "it went"}')


def placed(client):
    """Write jobs to the places that the commands read, as processes leave them."""
    owner = "host:9:00000000000f"
    client.sadd(keys.QUEUES, "old")
    client.lpush(keys.queue("old"), *(encoded("NoteWorker", jid=jid, queue="old") for jid in ("waiting", "second")))
    client.set(keys.status("waiting"), "queued")
    client.zadd(keys.REGISTRY, {owner: 1})
    client.set(keys.lease(owner), 1, px=3_600_000)  # longer than all commands take on a loaded machine
    client.lpush(keys.working(owner), encoded("OneWorker", jid="in-hand"))
    client.zadd(f"{keys.limit('OneWorker')}:running", {f"{owner} in-hand": 4e9})
    client.hset(keys.limit("OneWorker"), mapping={"limit": 1, "share": 0})
    client.sadd(keys.LIMITS, "OneWorker")
    held_job = encoded("OneWorker", jid="limited", queue="old").decode()
    client.zadd(f"{keys.limit('OneWorker')}:turns", {"": 1})
    client.zadd(f"{keys.limit('OneWorker')}:waiting:", {f'["old","limited"]\n{held_job}': 1})
    client.sadd(keys.LIMITS_WAITING, keys.limit("OneWorker"))
    client.sadd(keys.PROCESSES, owner)
    client.hset(owner, mapping={"info": json.dumps({"queues": ["old"], "concurrency": 1}), "busy": 1, "quiet": "false"})
    for key, jid in ((keys.DEAD, "dead"), (keys.SCHEDULE, "late"), (keys.RETRY, "again")):
        client.zadd(key, {encoded("NoteWorker", jid=jid, queue="old"): 4e9})


def change(site, client):
    jobs, migrate = (str(ROOT / "scripts" / name) for name in ("jobs", "migrate_jobs"))
    for words in CHANGES:
        ended = site.run(jobs, *words.split())
        assert ended.returncode in (0, 1), f"{words}: {ended.stdout}{ended.stderr}"
    for place in ("queued", "scheduled", "retry", "dead"):
        site.run(migrate, place, "--to", "new", "--from", "old", "-r", "jobs")
    assert client.llen(keys.queue("new")) == 2
    for words in ("pause-queue new", "unpause-queue new", "quiet host:9", "clear new --yes"):
        ended = site.run(jobs, *words.split())
        assert ended.returncode == 0, f"{words}: {ended.stdout}{ended.stderr}"
    assert client.llen(keys.queue("new")) == 0


@pytest.mark.campaign
def test_roles_grant_exactly_the_rights_they_use(server, site, redis, resumes):
    unused: list[str] = []
    with server.open() as client:
        with Census(server) as census:
            with census.at_work("producer"):
                produce(site, resumes)
            with census.at_work("worker"):
                work(site, redis, client, resumes)
            placed(client)
            with census.at_work("read-only"):
                look(site, "read-only")
            with census.at_work("operator"):
                look(site, "operator")
                change(site, client)
        assert server.refusals() == []
    for role in rights.ROLES.values():
        missed = census.unused(role) - set(ELSEWHERE.get(role.name, ()))
        unused += [f"{role.name}: {right}" for right in sorted(missed)]
    assert not unused, "rights that no code path uses (framework/store/rights.py):\n" + "\n".join(unused)


@each_row("role", ELSEWHERE)
def test_rights_not_used_here_are_used_at_their_note(role):
    for right, (file, words) in ELSEWHERE[role].items():
        assert words in (ROOT / "framework" / file).read_text(), (
            f"{role} {right}: {file} does not say {words!r} any more"
        )
