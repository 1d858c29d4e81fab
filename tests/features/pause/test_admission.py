"""Check the pause policy with a real Redis: outdated pause state, lost replies and unusable keys."""

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.execute.admission import AdmissionRequest
from framework.features.flags.flag import Flag, LayeredFlags, pause_flag
from framework.features.flags.redis_flags import RedisFlags, set_flag, unset_flag
from framework.features.pause.admission import PausePolicy
from framework.features.pause.state import PauseState
from framework.features.pause.strategies import PauseStrategies
from framework.finish.outcome import Held, Lost
from framework.store.script import HOLD_PAUSED
from framework.wire import keys
from tests.harness import IDENTITY, encoded, hold, payload, server_lines

WORKING = keys.working(IDENTITY)
HELD = keys.paused_jobs("CalmWorker")


@pytest.fixture
def entry(redis):
    with registry.isolated():

        class CalmWorker(ApplicationWorker):
            feature_category = "not_owned"
            wire_name = "CalmWorker"

            def perform(self):
                pass

        yield AdmissionRequest(
            hold(redis, encoded("CalmWorker")), payload("CalmWorker"), CalmWorker.declaration(), CalmWorker
        )


@pytest.fixture
def stored(redis, granted):
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100, "why", "ops"), None)
    flags = RedisFlags(granted, "main")
    flags.read()
    return flags


def make_policy(client, stored, flags=None):
    known = flags or stored
    return PausePolicy(client, IDENTITY, PauseState(known, stored, PauseStrategies((), {}), known.read))


def test_pause_policy_ended_pause_holds_no_job(redis, stored, entry):
    policy = make_policy(redis, stored)
    assert policy.applies_to(entry.declaration)
    unset_flag(redis, pause_flag("CalmWorker"))
    assert policy.admit(entry) is None
    assert redis.lrange(WORKING, 0, -1) == [entry.unit.data]
    assert not policy.applies_to(entry.declaration)
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100), None)
    stored.read()
    set_flag(redis, Flag(pause_flag("CalmWorker"), 100, "another why"), None)
    assert policy.admit(entry) == Held("paused", {"pause_control": "manual", "pause_reason": "another why"})


def test_pause_policy_lost_reply_still_counts_as_held(redis, stored, entry):
    class LosesFirstReply:
        """A client that loses the first reply."""

        def execute_command(self, *command):
            reply = redis.execute_command(*command)
            if command[0] == "EVALSHA" and not lost_replies:
                lost_replies.append(reply)
                raise RedisConnectionError("lost")
            return reply

    lost_replies = []
    redis.script_load(HOLD_PAUSED.source)
    policy = make_policy(LosesFirstReply(), stored)
    with pytest.raises(RedisConnectionError):
        policy.admit(entry)
    assert redis.zcard(HELD) == 1
    assert policy.admit(entry).status == "paused"
    assert isinstance(policy.admit(entry), Lost)  # another process has it by now


def test_pause_policy_unusable_keys_delay_no_job(redis, stored, entry):
    redis.set(HELD, "x")
    policy = make_policy(redis, stored)
    with server_lines("info") as lines:
        assert policy.admit(entry) is None
        assert policy.admit(entry) is None
        assert [line["event_name"] for line in lines()] == ["pause.unusable"]
    assert redis.lrange(WORKING, 0, -1) == [entry.unit.data]


def test_pause_policy_other_source_writes_strategy_marker(redis, granted, entry):
    class Provider(RedisFlags):
        def find(self, name):
            return Flag(name, 100) if name == pause_flag("CalmWorker") else None

    stored = RedisFlags(granted, "main")
    assert make_policy(redis, stored, LayeredFlags(stored, Provider(redis, "main"))).admit(entry).status == "paused"
    assert redis.get(keys.pause_strategy("CalmWorker")) == b"manual"
