"""A process is struck at each single Redis command that it sends, in six ways: `tests/proofs/crash_points`.

Each case ends with a judgement: nothing lost, nothing run again but what a death cut off, every key in order. The whole
enumeration, with larger batches and double faults, is `scripts/prove points`; here, of a command that comes more often the
first and the last are struck, and those that move no job in a few scenarios only.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.conftest import ROOT, short_folder
from tests.proofs.crash_points.wire import QUIET, WAYS

BEAT = "EXISTS,beat"
PARK = "CLIENT ID,BLMOVE"
POLL = "TIME,ZCARD,ZCOUNT,ZCOUNT,ZRANGE,due"
POLL_RETRY = "TIME,ZCARD,ZCOUNT,ZRANGE,due"
RECORD = "RPOP,SADD,HSET,EXPIRE,SMEMBERS,INFO"

ONCE = "WATCH,PEXPIRE,MULTI"  # of a slice of a bulk push, before its writes
COMMANDS = {
    "connect": "HELLO,CLIENT SETNAME,SADD,LPUSH",
    "push": "SADD,LPUSH",
    "bulk": f"SADD,{ONCE},RPUSH,LMOVE,PEXPIRE,EXEC",  # of one job; LPUSH writes the others
    "bulk resumed": f"SADD,{ONCE},RPUSH,LMOVE,PEXPIRE,EXEC",
    "bulk resumed locked": "admit",
    "bulk later": f"TIME,SET,{ONCE},ZADD,EVAL ?,EXEC",
    "push tracked": "SET,SADD,LPUSH",
    "push locked": "admit",
    "schedule": f"delay,{BEAT},{POLL},promote",
    "run": f"{BEAT},fetch,fetch,{PARK}",
    "run locked": f"{BEAT},fetch,enter,complete,fetch,{PARK}",
    "parked": f"{BEAT},fetch,{PARK},fetch,BLMOVE",
    "run sync": f"{BEAT},fetch,fetch,fetch,{PARK}",
    "run tracked": f"{BEAT},fetch,SET,state,fetch,{PARK}",
    "suspect": f"{BEAT},fetch,announce,fetch,{PARK}",
    "unloaded": f"{BEAT},EVAL beat,fetch,EVAL fetch,postpone,EVAL postpone,fetch,{PARK},{POLL_RETRY},EVAL due,promote,"
    "EVAL promote,ZCOUNT,complete,EVAL complete,fetch,BLMOVE",
    "retry": f"{BEAT},fetch,postpone,fetch,{PARK},{POLL_RETRY},promote,ZCOUNT,complete,fetch,BLMOVE",
    "later": f"{BEAT},fetch,postpone,fetch,{PARK},{POLL},promote,complete,fetch,BLMOVE",
    "dead": f"{BEAT},fetch,SET,bury,fetch,{PARK}",
    "dropped": f"{BEAT},fetch,complete,fetch,{PARK}",
    "discarded": f"{BEAT},fetch,SET,state,complete,fetch,{PARK}",
    "retired": f"{BEAT},fetch,drop,fetch,{PARK}",
    "stop": f"{BEAT},{RECORD},fetch,requeue,SREM,DEL,retire,forget",
    "cut off": f"{BEAT},{RECORD},fetch,interrupt,SREM,DEL,retire,forget",
    "refused": f"{BEAT},{POLL},state,promote",
    "cross": f"{BEAT},{POLL},promote,ZCOUNT,ZRANGE,due,TIME,ZMSCORE,land,promote,EXPIRE",
    "race": f"{BEAT},{POLL},{POLL},promote,promote",
    "recover": f"{BEAT},retire,DEL,SREM,SCAN,adopt,ZRANGEBYSCORE,examine,reclaim,reclaim,reclaim,examine,forget,"
    "LRANGE,SCAN,ZRANGEBYSCORE,examine,forget,LRANGE",
    "limited": f"{BEAT},fetch,acquire,fetch,{PARK},retire,DEL,SREM,SCAN,adopt,ZRANGEBYSCORE,examine,reclaim,examine,forget,"
    "LRANGE,acquire,complete,fetch,acquire,announce,complete,fetch,BLMOVE",
    "paused": f"{BEAT},TIME,HGETALL,fetch,park,fetch,{PARK},TIME,HGETALL,SMEMBERS,unpark,unpark,enter,complete,fetch,BLMOVE",
    "reconcile": f"{BEAT},SCAN,adopt,ZRANGEBYSCORE,LRANGE,fetch,{PARK},SCAN,adopt,ZRANGEBYSCORE,LRANGE,bury,requeue",
    "beside": f"{BEAT},{RECORD},SCAN,ZRANGEBYSCORE,LRANGE,TIME,ZCARD,ZCOUNT,ZCOUNT,beat",
}
"""By scenario the commands of one job's way, in order; scripts by their names. They are what is struck."""

STRUCK = [
    pytest.param(scenario, way, marks=() if (number - index) % 6 == 0 else pytest.mark.campaign)
    for number, scenario in enumerate(COMMANDS)
    for index, way in enumerate(WAYS)
]
"""Each scenario with each way. One way of each scenario runs in every suite, the others as campaigns."""

LEAST_COMMANDS = 450
"""Of all scenarios and batches together: times six are the cases of `scripts/prove points`."""


class Theatre:
    """The process that plays, with two servers of its own."""

    def __init__(self, folder) -> None:
        self._error_details = folder / "errors"
        with self._error_details.open("w") as errors:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.proofs.crash_points", str(folder)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, **request):
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()
        answer = self._popen.stdout.readline()
        assert answer, f"the theatre ended with {self._popen.wait(20)}: {self._errors.read_text()[-3000:]}"
        return json.loads(answer)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait(20)


@pytest.fixture(scope="session")
def theatre(nothing_left_running):
    with short_folder() as folder:
        made = Theatre(folder)
        yield made
        made.close()


def test_every_command_of_a_jobs_way_is_among_the_points(theatre):
    found = theatre.ask(ask="commands")
    assert {name: ",".join(batches["1"]) for name, batches in found.items()} == COMMANDS
    assert sum(len(commands) for batches in found.values() for commands in batches.values()) >= LEAST_COMMANDS


@pytest.mark.proves(
    "F1", "F10", "I1", "I2", "I3", "I4", "I5", "I7", "I8", "I9", "I10", "I19", "I24", "R8", "R9", "R17", "R31"
)
@pytest.mark.parametrize(("scenario", "way"), STRUCK)
def test_struck_at_any_command_nothing_is_lost_and_nothing_runs_again_but_what_was_cut_off(theatre, scenario, way):
    found = theatre.ask(scenario=scenario, way=way)
    assert not found["broken"], "\n\n".join(found["broken"])
    assert {*COMMANDS[scenario].split(",")} - QUIET <= {*found["struck"]}


@pytest.mark.campaign
@pytest.mark.proves("F1", "I1", "I2", "I8")
@pytest.mark.parametrize(("scenario", "command"), [("run", "fetch"), ("recover", "reclaim"), ("cross", "land")])
def test_whoever_comes_to_the_rescue_may_die_at_any_command_too(theatre, scenario, command):
    found = theatre.ask(scenario=scenario, batch=1, rescued=command, way="die sent")
    assert not found["broken"], "\n\n".join(found["broken"])
    assert found["struck"] == [command]
    assert found["cases"] > 10
