"""Limits that hold on all shards together: the slots of all shards never exceed the limit, and all of them are used."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from redis.exceptions import RedisError

from framework.all_settings import load
from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.concurrency.admin import read_limits
from framework.features.concurrency.limits import FleetSlots, Limits
from framework.features.concurrency.portions import (
    HOLD_AFTER_S,
    LimitDivider,
    PortionKeeper,
    forget_shard,
    read_portions,
    use_portions,
)
from framework.store.absent_keys import AbsentKeys
from framework.store.connect import Endpoint, open_client, server_time
from framework.store.script import RELEASE_WAITING, TAKE_SLOT
from framework.wire import keys
from tests.harness import examples, server_lines
from tests.servers.guarded import with_all_rights

SHARDS = ("a", "b")
LIMIT = 4
BASE = keys.limit("Shared")

PHASES = (Phase.explicit, Phase.generate)
"""To look for a shorter example takes minutes."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "end", "round", "say", "say_late", "use_late"]),
        st.sampled_from(SHARDS),
        st.integers(0, 3),
    ),
    min_size=20,
    max_size=60,
)


class Fleet:
    """Shards, each a database of one server, and the state that processes may have read before they stopped for a while."""

    def __init__(self, meta, clients):
        self.meta, self.clients = meta, clients
        self.divider = LimitDivider(meta, SHARDS, silent_after_s=3_600)
        self.read = {shard: [] for shard in SHARDS}
        self.given = {shard: [] for shard in SHARDS}
        self.jobs = 0
        self.stated = f"+{LIMIT}"

    def reset(self):
        self.__init__(self.meta, self.clients)
        for client in (self.meta, *self.clients.values()):
            client.flushdb()
        for shard in SHARDS:
            self.round(shard)

    def arrive(self, shard, _at=0):
        for _ in range(LIMIT):
            self._arrive(shard)

    def _arrive(self, shard):
        self.jobs += 1
        jid, working = f"{self.jobs:024x}", keys.working(f"{shard}:1:000000000000")
        job = b'{"class":"Shared","jid":"%s","args":[],"queue":"q"}' % jid.encode()
        self.clients[shard].lpush(working, job)
        words = [job, f"{shard}:1:000000000000 {jid}", jid, "q", self.stated, 1_000_000, "", "", 0, "wait", ""]
        TAKE_SLOT(self.clients[shard], [working, BASE], words)

    def end(self, shard, at=0):
        """End a job, and hand its slot over as the script of a fetch does."""
        client = self.clients[shard]
        slots = client.zrange(f"{BASE}:running", 0, -1)
        if slots:
            client.zrem(f"{BASE}:running", slots[at % len(slots)])
            RELEASE_WAITING(client, [BASE], [self.stated, 0, 20, 60])

    def say(self, shard, _at=0):
        """Say what the shard has now; the process stops before it uses the answer."""
        self.read[shard] += read_portions(self.clients[shard], ["Shared"])
        self.say_late(shard)

    def say_late(self, shard, at=0):
        """Say what the shard had some time ago."""
        if self.read[shard]:
            state = self.read[shard][-1 - at % len(self.read[shard])]
            self.given[shard].append((state, *self.divider.divide(shard, [state])))

    def use_late(self, shard, at=0):
        found = self.given[shard]
        if found:
            use_portions(self.clients[shard], [found[-1 - at % len(found)]])

    def round(self, shard, _at=0):
        self.say(shard)
        self.use_late(shard)

    def running(self):
        return [client.zcard(f"{BASE}:running") for client in self.clients.values()]

    def waiting(self):
        return sum(client.zcard(f"{BASE}:waiting:") for client in self.clients.values())


@pytest.fixture
def fleet(make_server):
    url = with_all_rights(make_server().url)
    meta, *clients = [open_client(Endpoint(f"{url}?db={number}"), name="tested") for number in range(1 + len(SHARDS))]
    made = Fleet(meta, dict(zip(SHARDS, clients, strict=True)))
    made.url = url
    yield made
    for client in (meta, *clients):
        client.close()


@settings(
    max_examples=examples(36), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=PHASES
)
@given(steps=STEPS)
def test_slots_of_all_shards_never_exceed_the_limit_and_all_are_used(fleet, steps):
    fleet.reset()
    for name, shard, at in steps:
        getattr(fleet, name)(shard, at)
        assert sum(fleet.running()) <= LIMIT, fleet.running()
    for _ in range(4):
        for shard in SHARDS:
            fleet.round(shard)
            assert sum(fleet.running()) <= LIMIT, fleet.running()
    # Slots of jobs that run stay where they are; every free one goes to a job that waits.
    assert sum(fleet.running()) == min(LIMIT, sum(fleet.running()) + fleet.waiting())


def test_portion_that_comes_late_is_not_used(fleet):
    fleet.reset()
    for name, shard in (("arrive", "a"), ("arrive", "a"), ("round", "a"), ("arrive", "b"), ("round", "a")):
        getattr(fleet, name)(shard)
    for _ in range(LIMIT):
        fleet.end("a")
        fleet.round("a")
        fleet.round("b")
    assert fleet.running() == [2, 2]
    for at in range(len(fleet.given["a"])):
        fleet.use_late("a", at)
        assert fleet.running() == [2, 2]


def test_portion_that_is_not_in_use_yet_counts(fleet):
    fleet.reset()
    fleet.arrive("a")
    # The process stops for a while before it uses all slots; another one gets fewer, because jobs wait elsewhere too.
    fleet.say("a")
    fleet.arrive("b")
    fleet.round("b")
    fleet.say("a")
    fleet.round("b")
    assert fleet.running() == [0, 0]
    fleet.use_late("a", 1)
    assert fleet.running() == [LIMIT, 0]
    fleet.use_late("a")
    fleet.round("b")
    assert fleet.running() == [LIMIT, 0]


def test_slots_follow_the_waiting_jobs(fleet):
    fleet.reset()
    fleet.arrive("a")
    fleet.round("a")
    fleet.round("a")
    assert fleet.running() == [LIMIT, 0]
    for _ in range(LIMIT):
        fleet.end("a")
    fleet.arrive("b")
    fleet.round("b")
    # The slots are still with the first shard, which has not said that it needs them no more.
    assert fleet.running() == [0, 0]
    fleet.round("a")
    fleet.round("a")
    fleet.round("b")
    assert fleet.running() == [0, LIMIT]


def test_division_that_was_lost_hears_all_shards_first(fleet):
    fleet.reset()
    fleet.arrive("a")
    fleet.round("a")
    fleet.meta.flushdb()
    fleet.arrive("b")
    state = read_portions(fleet.clients["b"], ["Shared"])
    (portion,) = fleet.divider.divide("b", state)
    assert (portion.slots, portion.to_ask) == (0, ("a",))
    fleet.round("a")
    fleet.round("b")
    assert fleet.running() == [LIMIT, 0]


def test_silent_shard_is_named_to_one_that_lacks_slots(fleet):
    fleet.reset()
    fleet.arrive("a")
    fleet.round("a")
    fleet.arrive("b")
    fleet.divider = LimitDivider(fleet.meta, SHARDS, silent_after_s=0)
    (portion,) = fleet.divider.divide("b", read_portions(fleet.clients["b"], ["Shared"]))
    assert (portion.slots, portion.lacks, portion.to_ask) == (0, True, ("a",))


def test_limit_that_holds_on_one_shard_again_forgets_its_portion(fleet):
    fleet.reset()
    fleet.arrive("a")
    fleet.round("a")
    client = fleet.clients["a"]
    client.hset(BASE, "limit", "9")
    assert [(state.limit, state.portion) for state in read_portions(client)] == [(0, 0)]
    client.hset(BASE, "limit", f"+{LIMIT}")
    assert [(state.limit, state.portion) for state in read_portions(client)] == [(LIMIT, 0)]


def test_class_that_holds_without_the_meta_shard_starts_nothing_after_a_minute(fleet):
    fleet.reset()
    fleet.stated = f"+0{LIMIT}"
    fleet.arrive("a")
    fleet.round("a")
    client = fleet.clients["a"]
    slots, _, end = client.hget(BASE, "portion").decode().partition(" ")
    assert (slots, fleet.running()) == (str(LIMIT), [LIMIT, 0])
    assert 0 < float(end) - server_time(client) <= HOLD_AFTER_S
    client.hset(BASE, "portion", f"{LIMIT} 1")
    fleet.end("a")
    fleet.arrive("a")
    assert fleet.running() == [LIMIT - 1, 0]
    (report,) = read_limits(client, server_time(client), ["Shared"])
    assert (report.limit, report.whole, report.source) == (-1, LIMIT, "portion")


def test_slots_of_a_shard_that_is_gone_can_be_given_away(fleet):
    fleet.reset()
    fleet.arrive("a")
    fleet.round("a")
    fleet.arrive("b")
    fleet.round("b")
    assert fleet.running() == [LIMIT, 0]
    assert forget_shard(fleet.meta, "a", "Other") == 0
    assert forget_shard(fleet.meta, "a") == LIMIT
    fleet.divider = LimitDivider(fleet.meta, ["b"])
    fleet.round("b")
    assert fleet.running() == [LIMIT, LIMIT]


def test_error_of_the_own_shard_is_not_that_of_the_meta_shard(tmp_path, make_server):
    servers = {"main": make_server(), "second": make_server()}
    (tmp_path / "config").mkdir()
    shards = {name: {"url": with_all_rights(server.url)} for name, server in servers.items()}
    (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards, "roles": {"meta": "second"}}))
    settings = load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path)
    own, meta = (open_client(Endpoint(with_all_rights(one.url)), name="tested") for one in servers.values())
    Fleet(meta, {"main": own}).arrive("main")
    process = SimpleNamespace(
        settings=settings,
        shard=SimpleNamespace(name="main"),
        identity="w:1:1",
        quiet=False,
        upkeep=own,
        absent=AbsentKeys((), 60),
    )
    keeper = PortionKeeper(process, "second")
    servers["second"].stop()
    with server_lines("info") as lines:
        keeper.step()
    assert [(line["event_name"], line["severity"]) for line in lines()] == [("concurrency_limit.meta_away", "WARN")]
    servers["second"].start()
    states = read_portions(own)
    servers["main"].stop()
    with pytest.raises(RedisError):
        keeper._keep("main", own, states)
    keeper.end()


@pytest.mark.parametrize(("turn", "running", "portion"), [("", [3, 1], 1), ("w:2:2", [2, 2], 2)])
def test_waiting_jobs_of_a_shard_without_processes_claim_no_slots(tmp_path, fleet, turn, running, portion):
    """Its processes have died with one job, and left free slots and waiting jobs."""
    fleet.reset()
    fleet.arrive("b")
    fleet.arrive("b")
    fleet.round("b")
    dead = fleet.clients["b"]
    dead.zremrangebyrank(f"{BASE}:running", 0, 2)
    if turn:
        dead.set(keys.PORTIONS_TURN, turn)
    fleet.arrive("a")
    fleet.meta.hset(keys.portions("Shared"), "b:at", 1)
    (tmp_path / "config").mkdir()
    url = fleet.url
    shards = {name: {"url": f"{url}?db={number}"} for number, name in enumerate(("main", *SHARDS))}
    (tmp_path / "config" / "redis.yml").write_text(json.dumps({"shards": shards, "roles": {"meta": "main"}}))
    settings = load({"FRAMEWORK_CONFIG_DIR": str(tmp_path / "config")}, tmp_path)
    process = SimpleNamespace(settings=settings, absent=AbsentKeys((), 60))
    keeper = PortionKeeper(process, "main")
    keeper._keep("a", fleet.clients["a"], read_portions(fleet.clients["a"]))
    keeper.end()
    assert fleet.running() == running
    assert [state.portion for state in read_portions(dead)] == [portion]


def test_only_limits_of_classes_hold_on_all_shards(redis):
    with registry.isolated():
        counted, held, shared_out, paused = (
            declared("Counted", concurrency_limit=3),
            declared("Held", concurrency_limit=3, without_meta_shard="hold"),
            declared("SharedOut", concurrency_limit=3, max_concurrency_limit_percentage=0.5),
            declared("Paused", concurrency_limit=-1),
        )
    limits = Limits(FleetSlots(redis), shared=True)
    assert [limits.stated(one, limits.class_limit(one)) for one in (counted, held, shared_out, paused)] == [
        *("+3", "+03", "3", "-1"),
    ]
    assert Limits(FleetSlots(redis)).stated(counted, 3) == "3"


def declared(name, **attributes):
    body = {"feature_category": "not_owned", "perform": lambda self: None, "wire_name": name}
    return type(name, (ApplicationWorker,), {**body, **attributes}).declaration()
