"""Test a process with a fault at each single Redis command that it sends, of six kinds: `tests/proofs/crash_points`.

Each case ends with a check: no job lost, only jobs cut off by a death run again, every key in order. The whole
enumeration, with larger batches and double faults, is `scripts/prove points`; here, of a command that comes more often
only the first and the last have faults, those that move no job in a few scenarios only, and of a larger batch those that come
more often than for one job.
"""

import json
import os
import re

import pytest

from tests.conftest import ROOT, short_folder
from tests.fork_server import FORK_SERVER
from tests.harness import ALL_EXAMPLES
from tests.lua import SCRIPTS, script_files
from tests.proofs.crash_points.wire import QUIET, WAYS

HEARTBEAT = "EXISTS,heartbeat"
BLOCK = "CLIENT ID,BLMOVE"
POLL = "TIME,ZCARD,EXISTS,ZCOUNT,ZCOUNT,ZRANGE,read_due"
POLL_RETRY = "TIME,ZCARD,EXISTS,ZCOUNT,ZRANGE,read_due"
OPERATE = "TIME,ZSCAN,act_on_entries"
DIVIDE = "concurrency/read_portions,concurrency/divide"
OPERATE_ON_SCHEDULE = f"{OPERATE},ZCARD"
RETURN_DEFERRED = "ZCARD,TIME,ZRANGE,HMGET,GET,LLEN,ZCOUNT,HGET,unpack_deferred"
REFRESH = "ZCARD,ZRANGEBYSCORE,TIME,HSCAN,GET,HVALS"  # the cancelled jobs, the pauses, the memory and the moves
RECORD = "RPOP,SADD,HSET,EXPIRE,SMEMBERS,INFO"

PACK = "LLEN,HGET,HGET,LINDEX,LRANGE,packing/pack,LLEN,HGET,HGET,LPOS,LINDEX"
SETS = ",".join(["HGETALL,ZSCAN"] * 5)
LOCKS = "SCAN,TIME,HMGET,PTTL,HMGET,PTTL,HMGET,PTTL,WATCH,HMGET,PTTL,TIME,MULTI"  # those of three locks, and of one that changes
ONCE = "WATCH,PEXPIRE,MULTI"  # of a chunk of a bulk push, before its writes
COMMANDS = {
    "connect": "HELLO,CLIENT SETNAME,SADD,LPUSH",
    "push": "SADD,LPUSH",
    "bulk": f"SADD,{ONCE},RPUSH,LMOVE,PEXPIRE,EXEC",  # of one job; LPUSH writes the others
    "bulk resumed": f"SADD,{ONCE},RPUSH,LMOVE,PEXPIRE,EXEC",
    "bulk resumed locked": "push_unique",
    "bulk later": f"TIME,SET,{ONCE},ZADD,EVAL ?,EXEC",
    "push tracked": "SET,SADD,LPUSH",
    "push full": "SADD,LPUSH,GET,GET,INFO,push_fair_in_reserve",
    "push full locked": "push_unique,GET,GET,INFO,push_unique_in_reserve",
    "bulk full": f"SADD,{ONCE},RPUSH,LMOVE,PEXPIRE,EXEC,GET,GET,INFO,push_fair_in_reserve",
    "push locked": "push_unique",
    "schedule": f"push_delayed,{HEARTBEAT},{POLL},enqueue_due",
    "run": f"{HEARTBEAT},fetch,fetch,{BLOCK}",
    "run locked": f"{HEARTBEAT},fetch,admit,fetch,{BLOCK}",
    "packed": f"{PACK},{HEARTBEAT},fetch,unpack,fetch,fetch,{BLOCK}",
    "packed in store": f"{PACK},LINDEX,unpack,LINDEX,{HEARTBEAT},fetch,fetch,{BLOCK}",
    "packed cleared": f"{PACK},SSCAN,LLEN,SMEMBERS,heartbeat,RENAMENX,migrate,unpack,migrate,migrate,mark_dead,unregister,"
    f"WATCH,EXISTS,MULTI,EXEC,ring,{HEARTBEAT},fetch,fetch,{BLOCK}",
    "packed in turn": f"{PACK},{HEARTBEAT},fetch,unpack,fetch,fetch,{BLOCK}",
    "packed uncounted": f"{PACK},{HEARTBEAT},fetch,return_block,fetch,fetch,{BLOCK}",
    "blocked": f"{HEARTBEAT},fetch,{BLOCK},fetch,BLMOVE",
    "run sync": f"{HEARTBEAT},fetch,fetch,fetch,{BLOCK}",
    "run rerun": f"{HEARTBEAT},fetch,admit,finish_unless_duplicated,fetch,{BLOCK}",
    "run tracked": f"{HEARTBEAT},fetch,fetch,{BLOCK}",
    "iterated": f"{HEARTBEAT},fetch,iteration/start,iteration/save,yield_job,fetch,iteration/start,fetch,{BLOCK}",
    "suspect": f"{HEARTBEAT},fetch,note_start,fetch,{BLOCK}",
    "unloaded": f"{HEARTBEAT},EVAL heartbeat,fetch,EVAL fetch,schedule,fetch,EVAL schedule,{BLOCK},{POLL_RETRY},"
    "EVAL read_due,enqueue_due,"
    "EVAL enqueue_due,ZCOUNT,fetch,BLMOVE",
    "retry": f"{HEARTBEAT},fetch,schedule,fetch,{BLOCK},{POLL_RETRY},enqueue_due,ZCOUNT,fetch,BLMOVE",
    "batch": f"{HEARTBEAT},fetch,schedule,fetch,{BLOCK},{POLL_RETRY},enqueue_due,ZCOUNT,fetch,BLMOVE",
    "later": f"{HEARTBEAT},fetch,schedule,fetch,{BLOCK},{POLL},enqueue_due,fetch,BLMOVE",
    "dead": f"{HEARTBEAT},fetch,kill,fetch,{BLOCK}",
    "dropped": f"{HEARTBEAT},fetch,finish,fetch,{BLOCK}",
    "discarded": f"{HEARTBEAT},fetch,fetch,{BLOCK}",
    "retired": f"{HEARTBEAT},fetch,drop_retired,fetch,{BLOCK}",
    "stop": f"{HEARTBEAT},{RECORD},fetch,requeue,GET,SREM,DEL,mark_dead,unregister",
    "cut off": f"{HEARTBEAT},{RECORD},fetch,interrupt,GET,SREM,DEL,mark_dead,unregister",
    "refused": f"{HEARTBEAT},{POLL},set_status,enqueue_due",
    "cross": f"{HEARTBEAT},{POLL},enqueue_due,ZCOUNT,ZRANGE,read_due,TIME,ZMSCORE,receive_transfer,enqueue_due,EXPIRE",
    "race": f"{HEARTBEAT},{POLL},{POLL},enqueue_due,enqueue_due",
    "recover": f"{HEARTBEAT},mark_dead,DEL,SREM,SCAN,register_orphan,ZRANGEBYSCORE,inspect_dead,reclaim,reclaim,"
    "reclaim,inspect_dead,unregister,"
    "LRANGE,SCAN,ZRANGEBYSCORE,inspect_dead,unregister,LRANGE",
    "limited": f"{HEARTBEAT},fetch,admit,fetch,{BLOCK},mark_dead,DEL,SREM,SCAN,register_orphan,ZRANGEBYSCORE,"
    "inspect_dead,reclaim,inspect_dead,unregister,"
    "LRANGE,admit,fetch,take_slot,note_start,fetch,BLMOVE",
    "divided": f"{HEARTBEAT},fetch,admit,fetch,{BLOCK},GET,SET,{DIVIDE},concurrency/read_portions,GET,concurrency/divide,{DIVIDE},"
    "concurrency/use_portion,admit,fetch,BLMOVE",
    "retried": OPERATE,
    "requeued": OPERATE,
    "enqueued": OPERATE_ON_SCHEDULE,
    "rescheduled": f"TIME,{OPERATE}",
    "killed": OPERATE_ON_SCHEDULE,
    "deleted": OPERATE_ON_SCHEDULE,
    "undone": f"TIME,TIME,ZRANGE,TIME,undo_delete,ZRANGE,{HEARTBEAT},{POLL},enqueue_due,fetch,fetch,{BLOCK}",
    "dropped held": f"TIME,SCAN,HGETALL,ZRANGE,drop_held,ZRANK,ZCOUNT,ZRANGE,{HEARTBEAT},{REFRESH},SMEMBERS,ZCARD,pause/release",
    "left lock": f"TIME,SCAN,SSCAN,ZSCAN,SMEMBERS,{SETS},search,{LOCKS},PEXPIRE,EXEC,"
    f"TIME,SCAN,SSCAN,search,{SETS},ZSCAN,SMEMBERS,{LOCKS},DEL,EXEC,{HEARTBEAT},fetch,admit,fetch,{BLOCK}",
    "cleared": "SSCAN,LLEN,SMEMBERS,heartbeat,RENAMENX,migrate,drop_queued,migrate,mark_dead,unregister,WATCH,EXISTS,MULTI,"
    "SREM,EXEC,ring",
    "kept": "SSCAN,LLEN,SMEMBERS,heartbeat,RENAMENX,migrate,migrate,mark_dead,unregister,WATCH,EXISTS,MULTI,EXEC,ring,"
    f"{HEARTBEAT},fetch,fetch,{BLOCK}",
    "cancelled": OPERATE_ON_SCHEDULE,
    "cancelled in queue": "SCAN,SSCAN,TIME,TIME,ZSCAN,ZCARD,TIME,ZSCAN,TIME,SCAN,search,mark_cancelled,SCAN,SSCAN,SMEMBERS,"
    f"{HEARTBEAT},{REFRESH},fetch,fetch,{BLOCK}",
    "cron": f"{HEARTBEAT},cron/lead,cron/lead,TIME,HGETALL,HGETALL,HGETALL,cron/push,fetch,fetch,{BLOCK}",
    "paused": f"{HEARTBEAT},{REFRESH},fetch,pause/hold,fetch,{BLOCK},{REFRESH},SMEMBERS,ZCARD,pause/release,"
    "pause/release,admit,fetch,BLMOVE",
    "paused packed": f"{HEARTBEAT},{REFRESH},fetch,pause/hold,fetch,{BLOCK},ZCARD,HGET,ZCOUNT,"
    f"ZRANGEBYSCORE,packing/pack_held,ZCARD,HGET,ZCOUNT,{REFRESH},SMEMBERS,ZCARD,pause/release,ZRANGE,unpack_held,"
    "pause/release,pause/release,admit,fetch,admit,fetch,BLMOVE",
    "deferred packed": f"{HEARTBEAT},ZCARD,ZRANGE,ZRANGE,ZRANGE,ZRANGE,TIME,ZRANGEBYSCORE,packing/pack_deferred,"
    f"packing/pack_deferred,{RETURN_DEFERRED},{RETURN_DEFERRED},ZCARD,{POLL},enqueue_due,fetch,fetch,fetch,{BLOCK}",
    "reconcile": f"{HEARTBEAT},SCAN,register_orphan,ZRANGEBYSCORE,LRANGE,fetch,{BLOCK},SCAN,register_orphan,"
    "ZRANGEBYSCORE,LRANGE,kill,requeue",
    "absent": f"{HEARTBEAT},SCAN,ZRANGEBYSCORE,LRANGE,EXISTS,{RECORD},SCAN,register_orphan,ZRANGEBYSCORE,EXISTS,RPOP,SMEMBERS,"
    f"SCAN,register_orphan,ZRANGEBYSCORE,LRANGE,fetch,{BLOCK},SCAN,register_orphan,ZRANGEBYSCORE,LRANGE,kill,requeue",
    "periodic": f"{HEARTBEAT},{RECORD},SCAN,ZRANGEBYSCORE,LRANGE,TIME,ZCARD,EXISTS,ZCOUNT,ZCOUNT,heartbeat",
}
"""By scenario the commands of its smallest batch, in order; scripts by their names. Each of them has a fault in a case."""

READS = "backlog/read_waiting limiters/read observability/read_fleet read_hashes read_processes read_queues"
"""Scripts that write nothing."""

OF_MOVES = "moves/mark_locks moves/page moves/receive moves/restore moves/take_aside"
"""Scripts whose points are in ``tests/features/moves/test_faults.py``."""

COUNTED = (
    "push_delayed_counted push_fair push_fair_counted push_scheduled_counted push_unique_counted push_window_counted"
)
"""Pushes that count their jobs, or are as one in the reserve: one command of a push, as the others."""

WRITES_NO_JOB = (
    "backlog/watch breaker/change breaker/start breaker/tend concurrency/add_seconds concurrency/throttle "
    "deduplication/start_locked end_pauses find_owners leases/obtain leases/renew limiters/lock limiters/take limiters/unlock "
    "note_pushed observability/report record_action renew_children renew_slots write"
)
"""Scripts that write facts, and move no job."""

ONE_STEP = (
    "backlog/return_aside backlog/set_aside batches/change batches/push fairness/change_priority moves/take moves/take_held "
    "push_up_to push_window release_waiting replace restore split_block workflows/advance workflows/change"
)
"""Scripts that move jobs and are met by no fault: ``tests/property/test_script_idempotence.py`` runs each once and twice."""

_WRITES = re.compile(
    r"call\('(?!EXISTS|GET|H(EXISTS|GET|KEYS|LEN|MGET|STRLEN|VALS)|L(INDEX|LEN|RANGE)|S(CARD|MEMBERS|RANDMEMBER|SCAN)|Z)"
)

ALL_OF_THEM = ALL_EXAMPLES in os.environ
FAULTS = [
    pytest.param(scenario, way, marks=() if (number - index) % 6 == 0 and not ALL_OF_THEM else pytest.mark.campaign)
    for number, scenario in enumerate(COMMANDS)
    for index, way in enumerate(WAYS)
]
"""Each scenario with each fault. One fault of each scenario runs in every suite, at a fourth of the commands; campaigns run all."""

PARTS = 1 if ALL_OF_THEM else 4

LEAST_COMMANDS = 450
"""Of all scenarios and batches together: times six are the cases of `scripts/prove points`."""


class CaseRunner:
    """The process that runs cases, with two servers of its own. The fork server has imported all that it needs."""

    def __init__(self, folder) -> None:
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._talk = FORK_SERVER.talk(["-m", "tests.proofs.crash_points", str(folder)], ROOT, os.environ, errors)

    def ask(self, **request):
        answer = self._talk.ask(json.dumps(request))
        assert answer, f"the runner ended with {self._talk.process.wait(20)}: {self._errors.read_text()[-3000:]}"
        return json.loads(answer)

    def close(self) -> None:
        self._talk.close()


@pytest.fixture(scope="session")
def runner(fork_server):
    with short_folder() as folder:
        made = CaseRunner(folder)
        yield made
        made.close()


def test_script_without_points_is_listed_with_its_reason():
    met = {word.removeprefix("EVAL ") for row in COMMANDS.values() for word in row.split(",")}
    listed = f"{READS} {OF_MOVES} {COUNTED} {WRITES_NO_JOB} {ONE_STEP}".split()
    assert sorted(listed) == sorted(SCRIPTS.keys() - met)
    # Of the file itself: a part has functions that a script does not call.
    texts = {name: script_files()[name].read_text() for name in READS.split()}
    assert {name for name, text in texts.items() if _WRITES.search(text)} == set()


@pytest.mark.campaign
def test_points_cover_every_command_of_a_job(runner):
    found = runner.ask(ask="commands")
    assert {name: ",".join(next(iter(batches.values()))) for name, batches in found.items()} == COMMANDS
    assert sum(len(commands) for batches in found.values() for commands in batches.values()) >= LEAST_COMMANDS


@pytest.mark.proves(
    "F1", "F10", "I1", "I2", "I3", "I4", "I5", "I7", "I8", "I9", "I10", "I19", "I24", "R8", "R9", "R17", "R31"
)
@pytest.mark.parametrize(("scenario", "way"), FAULTS)
def test_fault_at_any_command_loses_no_job(runner, scenario, way):
    commands = COMMANDS[scenario].split(",")
    part = list(COMMANDS).index(scenario) % PARTS
    found = runner.ask(scenario=scenario, way=way, commands=commands, part=[part, PARTS])
    assert not found["broken"], "\n\n".join(found["broken"])
    assert found["faulted"]
    assert PARTS > 1 or {*commands} - QUIET <= {*found["faulted"]}


@pytest.mark.campaign
@pytest.mark.proves("F1", "I1", "I2", "I8")
@pytest.mark.parametrize(
    ("scenario", "command"), [("run", "fetch"), ("recover", "reclaim"), ("cross", "receive_transfer")]
)
def test_second_fault_in_recovery_loses_no_job(runner, scenario, command):
    found = runner.ask(scenario=scenario, batch=1, recovered=command, way="die sent")
    assert not found["broken"], "\n\n".join(found["broken"])
    assert found["faulted"] == [command]
    assert found["cases"] > 10
