"""Plant a violation in histories of real servers: the prover names the first command, the job, and its former place."""

import shutil

import pytest

from framework.features.packing.store import PACK
from framework.fetch.blocks import split_block, unpack
from framework.store.script import (
    DROP_HELD,
    ENQUEUE_DUE,
    FETCH,
    FINISH,
    KILL,
    PUSH_UNIQUE,
    RECEIVE_TRANSFER,
    SCHEDULE,
    TAKE_SLOT,
)
from framework.telemetry.counters import series_name
from framework.telemetry.job_events import SKIPPED_JOBS
from framework.wire import blocks, keys
from framework.wire.resources import JobResources, Lock, LockDetails, LockTerms, Slot, UniqueJobs
from tests.harness import encoded, until
from tests.proofs.aof import History, HistoryError
from tests.proofs.keyspace import UnknownCommandError
from tests.proofs.prover import prove, prove_all

LEASE, MINE, OTHERS = "aw:lease:me", "aw:working:me", "aw:working:you"
JOB = encoded(jid="j1")
RETRIED = encoded(jid="j1", retry_count=0)


class ProvenServer:
    """A server whose history the prover reads."""

    def __init__(self, server, client):
        self.server, self.client = server, client

    def __getattr__(self, name):
        return getattr(self.client, name)

    def together(self, *commands):
        """Run commands in one MULTI: one instant."""
        pipeline = self.client.pipeline(transaction=True)
        for command in commands:
            pipeline.execute_command(*command)
        pipeline.execute()

    def push(self, data=JOB):
        self.client.lpush("queue:default", data)

    def fetch(self, *ended):
        self.client.set(LEASE, 1)
        arguments = [15_000, 10, len(ended), *ended, 10]
        FETCH(self.client, [LEASE, MINE, "queue:default"], arguments)

    def mark(self, jid="j1"):
        self.client.set("proof:ended", jid)

    @property
    def history(self):
        until(lambda: not self.client.info("persistence")["aof_buffer_length"], "written")
        return self.server.data_dir

    @property
    def verdict(self):
        return prove(self.history)

    def violation(self):
        (found,) = self.verdict.violations
        return found


@pytest.fixture
def proven(make_server):
    server = make_server()
    with server.open() as client:
        client.config_set("aof-timestamp-enabled", "yes")
        yield ProvenServer(server, client)


def shown(violation):
    """Return the rule, the finding, the former place of the job, and the command."""
    commands = [b" ".join(command[:2]).decode() for command in violation.group.commands]
    return violation.rule, violation.what, violation.before, commands


@pytest.mark.proves("I1", "I2", "I3")
def test_prover_accepts_jobs_of_the_real_scripts(proven):
    proven.push()
    proven.fetch()
    SCHEDULE(proven.client, [MINE, "retry"], [JOB, RETRIED, -1, ""])
    ENQUEUE_DUE(
        proven.client,
        ["retry", "queues", "dead", "queue:default"],
        [1, 10, 1000, 60, RETRIED, "queue", RETRIED, "default"],
    )
    proven.fetch()
    proven.mark()
    proven.fetch(RETRIED)
    proven.push(encoded(jid="j2"))
    proven.fetch()
    KILL(proven.client, [MINE, "dead"], [10, 1000, 0, encoded(jid="j2"), encoded(jid="j2"), "", ""])
    proven.push(encoded(jid="j3"))
    verdict = proven.verdict
    assert not verdict.violations
    assert (verdict.jobs, verdict.ends, verdict.left) == (3, {"finished": 1}, {"dead": 1, "queue:default": 1})
    assert verdict.marked
    assert verdict.torn is None
    assert verdict.groups < verdict.commands  # scripts are groups of several


@pytest.mark.proves("I1", "I2")
@pytest.mark.parametrize("far", [False, True])
def test_prover_accepts_packed_jobs(proven, far):
    jobs = [encoded(jid=f"j{number}") for number in range(6)]
    proven.lpush("queue:default", *jobs)
    block = blocks.pack("default", jobs[3:0:-1])
    counts = [keys.PACKED, keys.PACKED_BLOCKS, "none"]
    assert PACK(proven.client, ["queue:default", *counts], ["default", 9, -1 if far else 9, block, "", *jobs[3:0:-1]])
    proven.fetch()
    assert split_block(proven.client, "default", block, jobs[2])
    assert unpack(proven.client, "default", proven.lindex("queue:default", -1))
    proven.fetch()
    verdict = proven.verdict
    assert not verdict.violations
    assert verdict.left == {MINE: 3, "queue:default": 3}


@pytest.mark.proves("I1")
def test_prover_finds_a_block_that_is_gone(proven):
    proven.lpush("queue:default", blocks.pack("default", [JOB]))
    proven.rpop("queue:default")
    assert proven.violation().what == "left queue:default by RPOP, and is in no key"


@pytest.mark.proves("m1", "I1")
def test_prover_finds_a_reaper_that_pops_and_pushes(proven):
    proven.push()
    proven.fetch()
    proven.push(encoded(jid="j2"))
    proven.rpop(MINE)
    proven.rpush("queue:default", JOB)
    found = proven.violation()
    rule = "left aw:working:me by RPOP, and is in no key"
    assert shown(found) == ("I1", rule, (MINE.encode(),), [f"RPOP {MINE}"])
    data = found.group.path.read_bytes()
    assert data[found.group.offset : found.group.end] == b"*2\r\n$4\r\nRPOP\r\n$13\r\naw:working:me\r\n"
    assert found.group.number == 5  # LPUSH, SET lease, fetch, LPUSH, and this
    assert abs(found.group.at - proven.time()[0]) < 60
    text = str(found)
    assert all(part in text for part in ("j1", "byte", "group 5", "RPOP aw:working:me", " UTC"))


@pytest.mark.proves("m2", "I2")
def test_prover_finds_a_schedule_that_adds_first(proven):
    proven.push()
    proven.fetch()
    proven.zadd("retry", {RETRIED: 5})
    proven.lrem(MINE, -1, JOB)
    rule = "is in two places: aw:working:me, retry"
    assert shown(proven.violation()) == ("I2", rule, (MINE.encode(),), ["ZADD retry"])


@pytest.mark.proves("m9", "I1")
def test_prover_finds_an_acknowledgement_before_the_end(proven):
    proven.push()
    proven.push(encoded(jid="j2"))
    proven.fetch()
    proven.mark("j2")
    proven.fetch(encoded(jid="j2"), JOB)
    proven.mark("j1")
    found = proven.violation()
    assert found.jid == b"j1"
    rule = "was acknowledged before it had ended"
    assert shown(found)[:3] == ("I1", rule, (MINE.encode(),))
    assert [command[0] for command in found.group.commands].count(
        b"LREM"
    ) == 2  # the count of both is in a later command


@pytest.mark.proves("I3")
def test_prover_finds_a_job_in_two_working_lists(proven):
    proven.push()
    proven.fetch()
    proven.lpush(OTHERS, JOB)
    rule = "is in two working lists: aw:working:me, aw:working:you"
    assert shown(proven.violation()) == ("I3", rule, (MINE.encode(),), [f"LPUSH {OTHERS}"])


@pytest.mark.proves("I1")
def test_prover_finds_a_fetch_without_its_second_half(proven):
    proven.push()
    proven.push(encoded(jid="j2"))
    proven.together(("RPOP", "queue:default"), ("SADD", "queues", "default"))
    rule = "left queue:default by RPOP, and is in no key"
    assert shown(proven.violation()) == ("I1", rule, (b"queue:default",), ["RPOP queue:default", "SADD queues"])


@pytest.mark.proves("m7", "I1")
def test_prover_finds_an_enqueue_outside_of_a_script(proven):
    proven.zadd("schedule", {JOB: 1})
    proven.zrem("schedule", JOB)
    proven.push()
    assert shown(proven.violation())[:3] == ("I1", "left schedule by ZREM, and is in no key", (b"schedule",))


@pytest.mark.proves("I1", "I4")
def test_prover_finds_an_ended_job_that_returns(proven):
    proven.push()
    proven.fetch()
    proven.fetch(JOB)
    proven.rpush("queue:default", JOB)
    assert shown(proven.violation())[:3] == ("I1", "had ended, and is again in queue:default", ())


def test_prover_finds_a_job_without_a_push(proven):
    proven.lpush(MINE, JOB)
    assert shown(proven.violation())[:3] == ("I1", "comes from nowhere into aw:working:me", ())


def test_prover_reports_the_first_violation_of_each_job(proven):
    for jid in ("j1", "j2", "j3"):
        proven.push(encoded(jid=jid))
    proven.rpop("queue:default")
    proven.push(JOB)
    proven.rpop("queue:default")
    verdict = proven.verdict
    assert [violation.jid for violation in verdict.violations] == [b"j1", b"j2"]
    assert verdict.broken == 2
    assert verdict.left == {"queue:default": 2}


def test_prover_allows_gaps_within_one_step(proven):
    proven.push()
    proven.together(("RPOP", "queue:default"), ("LPUSH", MINE, JOB))
    proven.together(("LREM", MINE, -1, JOB), ("ZADD", "retry", 1, RETRIED))
    assert not proven.verdict.broken


def test_prover_accepts_legal_ends(proven):
    """Retired, trimmed and flushed jobs have ended; a value that is no job may occur twice."""
    proven.zadd("dead", {encoded(jid="old"): 1, encoded(jid="older"): 0})
    proven.zremrangebyscore("dead", "-inf", 0)
    proven.push()
    proven.fetch()
    proven.together(("LREM", MINE, -1, JOB), ("HINCRBY", "aw:retired", "Gone", 1))
    proven.push(b"null")
    proven.push(b"null")
    verdict = proven.verdict
    assert not verdict.violations
    assert verdict.ends == {"left dead": 1, "dropped, its class is retired": 1}
    proven.flushall()
    proven.push()
    verdict = proven.verdict
    assert not verdict.violations
    assert verdict.ends["wiped by FLUSHALL"] == 2  # `old` in dead, and the value that is no job


def held_member(data=JOB):
    """Return the member of a held job: its ticket, then its bytes."""
    return encoded(queue="default") + b"\n" + data


@pytest.mark.parametrize("place", ["aw:paused_jobs:A::B", "aw:limit:A::B:waiting"])
@pytest.mark.proves("I1", "I2")
def test_prover_accepts_a_held_job_in_its_key(proven, place):
    proven.push()
    proven.fetch()
    proven.together(("LREM", MINE, -1, JOB), ("ZADD", place, 1, held_member()))
    proven.together(("ZREM", place, held_member()), ("RPUSH", "queue:default", JOB))
    assert not proven.verdict.broken
    proven.fetch()
    proven.together(("LREM", MINE, -1, JOB), ("ZADD", place, 1, held_member()))
    assert proven.verdict.left == {place: 1}
    proven.zrem(place, held_member())
    assert shown(proven.violation())[:3] == ("I1", f"left {place} by ZREM, and is in no key", (place.encode(),))


@pytest.mark.proves("I2")
def test_prover_finds_a_job_held_before_it_leaves(proven):
    proven.push()
    proven.fetch()
    proven.zadd("aw:paused_jobs:A", {held_member(): 1})
    assert shown(proven.violation())[:2] == ("I2", f"is in two places: {MINE}, aw:paused_jobs:A")


BASE = "aw:limit:A::B"
RUNNING = f"{BASE}:running"


@pytest.mark.proves("I1", "I2", "I9", "I10", "R38", "R42")
def test_prover_accepts_policies_of_the_real_scripts(proven):
    """Two jobs with locks and a limit of one: one has the slot and hands it over; the other is dropped by an operator."""
    jobs = {jid: encoded(jid=jid) for jid in ("j1", "j2")}
    locks = {jid: Lock(f"aw:lock:{jid}", jid, 60.0, "A::B") for jid in jobs}
    for jid, data in jobs.items():
        terms = LockTerms("A::B", 60.0, True, "series").encode(LockDetails({}))
        unique = UniqueJobs(terms, [data], [locks[jid].key], [jid])
        arguments = [1, "default", "", 0, *unique.arguments(0, 1)]
        assert PUSH_UNIQUE(proven.client, ["queues", "queue:default"], arguments) == [b""]
    proven.fetch()
    for jid, state in (("j1", 1), ("j2", 0)):
        facts = [jobs[jid], f"me {jid}", jid, "default", 1, 60, "7", "", 0, "wait", ""]
        assert TAKE_SLOT(proven.client, [MINE, BASE], facts)[0] == state
    held = JobResources(locks["j1"], [Slot(BASE, "me j1")])
    assert FINISH(proven.client, [MINE], [jobs["j1"], held.on_end()]) == 1
    assert proven.zrange(RUNNING, 0, -1) == [b" j2"]
    proven.fetch()
    (waits,) = proven.lrange(MINE, 0, -1)
    TAKE_SLOT(proven.client, [MINE, BASE], [waits, "me j2", "j2", "default", -1, 60, "7", "", 0, "wait", ""])
    (held_job,) = proven.zrange(f"{BASE}:waiting:", 0, -1)
    series = series_name(SKIPPED_JOBS, {"worker": "A::B"})
    ended = JobResources(locks["j2"]).on_end()
    assert DROP_HELD(proven.client, [f"{BASE}:waiting:", "aw:counters"], [1, series, held_job, ended, 1]) == 1
    verdict = proven.verdict
    assert not [str(violation) for violation in verdict.violations]
    assert verdict.ends == {"finished": 1, "dropped by an operator": 1}
    assert not proven.keys("aw:lock:*")
    assert not proven.zcard(RUNNING)


HELD = encoded(
    lock={"key": "aw:lock:d", "owner": "j1", "keep_ms": 0},
    slots=[[RUNNING.removesuffix(":running"), "me j1"]],
)


def hold(proven):
    proven.together(("HSET", "aw:lock:d", "jid", "j1"), ("LPUSH", "queue:default", JOB))
    proven.fetch()
    proven.zadd(RUNNING, {"me j1": 1})


@pytest.mark.proves("I9", "I10", "R38", "R42")
def test_prover_accepts_resources_released_with_the_job(proven):
    hold(proven)
    FINISH(proven.client, [MINE], [JOB, HELD])
    assert not proven.keys("aw:l[io]*")
    assert not proven.verdict.violations


NO_JOB = {
    "aw:lock:d": ("I9", "has the lock aw:lock:d, and will not run"),
    RUNNING: ("I10", f"has the slot me j1 in {RUNNING}, and is not there"),
}


@pytest.mark.parametrize(("left", "freed"), [tuple(NO_JOB), tuple(reversed(NO_JOB))])
@pytest.mark.proves("I9", "I10", "R38", "R42", "m5")
def test_prover_finds_resources_of_ended_jobs(proven, left, freed):
    hold(proven)
    proven.together(("LREM", MINE, -1, JOB), ("DEL", freed))
    assert shown(proven.violation())[:3] == (*NO_JOB[left], (MINE.encode(),))


@pytest.mark.proves("I9", "I10")
def test_prover_finds_resources_without_a_job(proven):
    proven.push()
    proven.hset("aw:lock:d", "jid", "j2")
    proven.zadd(RUNNING, {"me j1": 1})  # it waits in its queue
    assert [(found.jid, found.rule) for found in proven.verdict.violations] == [(b"j2", "I9"), (b"j1", "I10")]


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.proves("I1", "I2")
def test_prover_follows_a_transfer_to_another_shard(proven, make_server, lands):
    there = make_server()
    marked = encoded(jid="j1", aw_transfer="T1")
    proven.zadd("schedule", {JOB: 1})
    keys = ["schedule", "queues", "dead", "dead"]
    ENQUEUE_DUE(proven.client, keys, [1, 10, 1000, 60, JOB, "mark", marked, ""])
    with there.open() as client:
        if lands:
            RECEIVE_TRANSFER(
                client, ["queues", "aw:transferred:T1", "queue:default"], [1, 60_000, "inf", JOB, "default"]
            )
        ENQUEUE_DUE(proven.client, keys, [1, 10, 1000, 60, marked, "remove", marked, ""])
        until(lambda: not client.info("persistence")["aof_buffer_length"], "written")
    assert not proven.verdict.broken  # one history alone does not show it
    here, other = prove_all([proven.server.data_dir, there.data_dir])
    assert here.ends == {"went to another shard": 1}
    if lands:
        assert not here.broken
        assert other.left == {"queue:default": 1}
    else:
        (found,) = here.violations
        assert shown(found)[:2] == ("I1", "left for another shard, and landed on none (token T1)")
        assert found.group.commands[0][0] == b"ZREM"


# --- the reader


def cut(proven, tmp_path, at):
    """Copy the history up to ``at`` bytes; a negative ``at`` is the number of omitted bytes."""
    assert proven.verdict.groups
    (path,) = History(proven.server.data_dir).files
    folder = tmp_path / "cut"
    shutil.copytree(path.parent, folder, dirs_exist_ok=True)
    data = path.read_bytes()[:at]
    (folder / path.name).write_bytes(data)
    return folder


@pytest.mark.proves("F48")
def test_history_with_a_torn_end_is_cut_as_redis_does(proven, tmp_path):
    proven.push()
    proven.push(encoded(jid="j2"))
    whole = proven.verdict
    folder = cut(proven, tmp_path, -1)
    torn = prove(folder)
    assert torn.groups == whole.groups - 1
    assert torn.left == {"queue:default": 1}
    assert torn.torn.reason == "half a command"
    assert (folder / torn.torn.path.name).read_bytes()[torn.torn.offset :].startswith(b"*3\r\n$5\r\nLPUSH")


def test_history_multi_without_exec_is_no_step(proven, tmp_path):
    proven.push()
    proven.together(("RPOP", "queue:default"), ("LPUSH", MINE, JOB))
    assert proven.verdict.left == {MINE: 1}
    torn = prove(cut(proven, tmp_path, -len(b"*1\r\n$4\r\nEXEC\r\n")))
    assert (torn.left, torn.broken) == ({"queue:default": 1}, 0)
    assert torn.torn.reason == "a MULTI without its EXEC"


def test_rewritten_history_is_not_whole(proven):
    proven.push()
    proven.bgrewriteaof()
    until(
        lambda: proven.info("persistence")["aof_rewrites"] and not proven.info("persistence")["aof_rewrite_in_progress"]
    )
    with pytest.raises(HistoryError, match="not whole: the file was rewritten"):
        prove(proven.server.data_dir)


def test_history_continues_after_restarts(proven):
    proven.push()
    proven.server.kill()
    proven.server.start()
    proven.push(encoded(jid="j2"))
    assert proven.verdict.left == {"queue:default": 2}


def test_file_that_is_no_history_is_refused(tmp_path):
    with pytest.raises(HistoryError, match="no append-only file"):
        prove(tmp_path)
    path = tmp_path / "x.aof"
    path.write_bytes(b"*1\r\n$8\r\nFLUSHALL\r\nnonsense\r\n")
    with pytest.raises(HistoryError, match="no command at byte 18"):
        prove(path)


def test_prover_refuses_an_unknown_write_to_a_job_key(proven):
    proven.push()
    proven.rename("queue:default", "queue:other")
    with pytest.raises(UnknownCommandError, match="group 2: RENAME queue:default"):
        prove(proven.history)
