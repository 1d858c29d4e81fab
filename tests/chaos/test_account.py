"""Test the account of ``scripts/chaos``: lost and forgotten jobs, extra runs with their cause, and the picture."""

import random
import time
from itertools import pairwise
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from tests.chaos.rounds.account import account
from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import NETWORK, PROCESS, REDIS, Fault, FaultInjector, Injection, lasting
from tests.chaos.rounds.history import FetchingProcess, Files
from tests.chaos.rounds.impact import impact
from tests.chaos.rounds.producer import AcceptedPushes
from tests.chaos.rounds.timeline import Timeline, drawn
from tests.chaos.rounds.worker_processes import Life
from tests.harness import encoded, until
from tests.tables import each_row

SVG = "{http://www.w3.org/2000/svg}"


def ran(serial, pid, begun, ended=None):
    effects = [Effect(BEGUN, serial, pid, begun)]
    return effects if ended is None else [*effects, Effect(ENDED, serial, pid, ended)]


def pushes(*answered_at, begun_at=None):
    return AcceptedPushes(answered_at if begun_at is None else begun_at, answered_at)


def judged(effects, injections=(), *, accepted=1, doubts=None, fetchers=None):
    return account(pushes(*[0.0] * accepted), effects, injections, doubts or {}, fetchers or {})


# --- lost and forgotten


def test_account_job_without_end_is_lost():
    found = judged(ran(0, 1, 1.0, 1.1) + ran(1, 1, 1.0), accepted=3)
    assert (found.lost, found.forgotten) == ([1, 2], [])


def cut(serials=(), since=4.0, at=5.0, *, ends=()):
    return Injection(
        "power cut", 0, at, until=6.0, forgets=(since, at),
        forgotten=frozenset(serials), forgotten_ends=frozenset(ends),
    )  # fmt: skip


@pytest.mark.proves("R15")
def test_account_forgotten_jobs_are_not_lost_jobs():
    found = account(pushes(4.5, 4.6, 4.7), ran(2, 1, 4.8, 4.9), [cut({0, 2})], {})
    assert (found.lost, found.forgotten, found.forgotten_early) == ([1], [0], [])
    assert found.kinds["power cut"].forgotten == 1


def test_account_jobs_forgotten_too_early_are_named():
    assert account(pushes(3.9), [], [cut({0})], {}).forgotten_early == [0]


def test_account_answer_recorded_late_is_forgotten():
    found = account(pushes(7.0, begun_at=[4.9]), [], [cut({0})], {})
    assert (found.lost, found.forgotten, found.forgotten_early) == ([], [0], [])


def test_account_repeated_push_without_run_is_lost():
    found = account(pushes(6.5), [], [cut({0})], {})
    assert (found.lost, found.forgotten) == ([0], [])


def test_account_run_that_ends_before_the_signal_is_not_cut_off():
    kill = Injection("kill", 1, 1.05)
    found = judged(ran(0, 1, 1.0, 1.06) + ran(1, 1, 1.0) + ran(1, 2, 1.3, 1.4), [kill], accepted=2)
    assert (found.interrupted, len(found.recoveries)) == (1, 1)


# --- extra runs


TWICE = ran(0, 1, 1.0, 1.1) + ran(0, 2, 9.0, 9.1)


@each_row(
    ("first", "injection", "kind"),
    [
        (ran(0, 1, 1.0), Injection("kill", 1, 1.05), "kill"),
        (ran(0, 1, 1.0, 1.1), Injection("kill", 1, 1.2), "kill"),  # had ended, perhaps not acknowledged
        (ran(0, 1, 1.0, 1.1), Injection("kill", 1, 5.0), "unexplained"),  # acknowledged long before
        (ran(0, 1, 1.0, 1.1), Injection("kill", 7, 1.2), "unexplained"),  # another process
        # the second run is of a thawed process
        (ran(0, 1, 1.0, 1.1), Injection("freeze", 2, 0.5, until=8.9), "freeze"),
        (ran(0, 1, 1.0, 1.1), cut((), 2.0, 3.0), "power cut"),  # its acknowledgement may be in the cut
        (ran(0, 1, 1.0, 1.1), cut((), 4.0, 5.0), "power cut"),  # a suspect, though it should not be
        (ran(0, 1, 1.0, 1.1), Injection("restart", 0, 2.0, 3.0), "restart"),
    ],
)
def test_account_extra_run_is_assigned_to_its_fault(first, injection, kind):
    found = judged(first + ran(0, 2, 9.0, 9.1), [injection])
    assert dict(found.extra) == {kind: 1}
    assert found.unexplained == ([0] if kind == "unexplained" else [])


@pytest.mark.proves("R15")
def test_account_forgotten_ends_are_not_runs_of_a_term():
    effects = [effect for serial in range(63) for effect in ran(serial, 1, 4.4, 4.5) + ran(serial, 2, 7.0, 7.1)]
    injections = [Injection("term", 1, 4.6), cut(ends=range(60))]
    found = judged(effects, injections, accepted=63)
    assert dict(found.extra) == {"power cut": 60, "term": 3}
    assert (found.ends_forgotten, found.worst) == (60, 3)


def test_account_end_before_cut_alone_can_be_forgotten():
    effects = ran(0, 1, 4.4, 4.5) + ran(0, 2, 5.5, 8.0) + ran(0, 3, 9.0, 9.1)
    found = judged(effects, [cut(ends=[0]), Injection("kill", 2, 8.5)])
    assert (dict(found.extra), found.ends_forgotten) == ({"power cut": 1, "kill": 1}, 1)


def test_account_each_injection_is_asked_whether_it_forgot():
    ended_early = Injection("power cut", 0, 20.0, until=20.1)
    found = judged([*TWICE, *ran(1, 1, 1.0, 1.1), *ran(1, 2, 21.0, 21.1)], [cut((), 0.9, 2.0), ended_early], accepted=2)
    assert (dict(found.extra), dict(found.extra_kept)) == ({"power cut": 2}, {})
    kept = judged([*ran(1, 1, 18.0, 18.1), *ran(1, 2, 21.0, 21.1)], [cut((), 0.9, 2.0), ended_early])
    assert (dict(kept.extra), dict(kept.extra_kept)) == ({"power cut": 1}, {"power cut": 1})


def test_account_doubtful_push_excuses_one_run_per_doubt():
    found = judged([*TWICE, *ran(0, 2, 12.0, 12.1)], doubts={0: 1})
    assert dict(found.extra) == {"doubtful push": 1, "unexplained": 1}


def test_account_worst_fault_has_most_extra_runs():
    effects = [effect for serial in range(3) for effect in ran(serial, 1, 1.0) + ran(serial, 2, 2.0, 2.1)]
    found = judged(effects, [Injection("kill", 1, 1.1), Injection("kill", 2, 60.0)], accepted=3)
    assert (found.worst, found.interrupted, found.runs) == (3, 3, 6)
    assert found.kinds["kill"].recoveries == [pytest.approx(0.9)] * 3


def test_account_outage_extends_the_recovery_limit():
    found = judged(
        ran(0, 1, 1.0) + ran(0, 2, 5.0, 5.1), [Injection("kill", 1, 1.1), Injection("restart", 0, 1.5, until=4.0)]
    )
    assert found.kinds["kill"].recoveries == [pytest.approx(1.0)]
    assert found.spans == [(1.1, 5.0)]


BOTH_KILLED = [Injection("kill", 1, 1.0), Injection("kill", 2, 16.4)]
CUT_OFF = ran(0, 1, 0.9) + ran(0, 3, 32.7, 32.8)


def test_account_recovery_counts_from_the_last_death():
    fetchers = {0: [FetchingProcess(1, 14.0), FetchingProcess(2, 32.0), FetchingProcess(3, 33.0)]}
    found = judged(CUT_OFF, BOTH_KILLED, fetchers=fetchers)
    assert found.kinds["kill"].recoveries == [pytest.approx(13.0), pytest.approx(16.3)]
    assert (found.interrupted, found.spans) == (1, [(16.4, 32.7)])


@each_row(
    "fetchers",
    [
        [
            FetchingProcess(1, 14.0),
            FetchingProcess(2, 10.0),
            FetchingProcess(3, 33.0),
        ],  # it had given the job back before it was killed
        [FetchingProcess(1, 32.0), FetchingProcess(3, 33.0)],  # it had never fetched the job
        [],
    ],
)
def test_account_death_of_process_without_the_job_is_no_end(fetchers):
    found = judged(CUT_OFF, BOTH_KILLED, fetchers={0: fetchers})
    assert found.kinds["kill"].recoveries == [pytest.approx(31.7)]


def test_account_forgotten_declaration_has_a_limit_of_its_own():
    failover = cut(since=0.8, at=2.0)
    found = judged(ran(0, 1, 0.9) + ran(0, 2, 16.0, 16.1), [Injection("kill", 1, 1.0), failover])
    assert (found.kinds["kill"].recoveries, found.kinds["kill"].undeclared) == ([], [pytest.approx(10.0)])
    assert found.recoveries == [pytest.approx(10.0)]
    known = judged(ran(0, 1, 6.9) + ran(0, 2, 8.0, 8.1), [failover, Injection("kill", 1, 7.0)])
    assert (known.kinds["kill"].recoveries, known.kinds["kill"].undeclared) == ([pytest.approx(1.0)], [])


def test_account_slow_recovery_before_the_last_death_is_kept():
    killed = [Injection("kill", 1, 1.0), Injection("kill", 2, 31.5)]
    found = judged(CUT_OFF, killed, fetchers={0: [FetchingProcess(1, 31.0), FetchingProcess(2, 32.0)]})
    assert max(found.recoveries) == pytest.approx(30.0)


def test_outage_ends_at_next_start_or_next_fault():
    injections = [Injection("restart", 0, 1.0, until=2.0), Injection("client kill", 0, 2.5, until=2.6)]
    found = judged(ran(0, 1, 2.9, 3.0), injections)
    assert found.kinds["restart"].resumed == []
    assert found.kinds["client kill"].resumed == [pytest.approx(0.3)]


# --- the other shard


def test_impact_on_other_shard_uses_its_own_baseline():
    calm = [effect for serial in range(10) for effect in ran(serial, 1, serial + 0.01, serial + 0.02)]
    slow = [effect for serial in range(10, 15) for effect in ran(serial, 1, 2.0 * serial - 9.7, 2.0 * serial - 9.6)]
    pushed = [*map(float, range(10)), *(2.0 * serial - 10 for serial in range(10, 15))]
    found = impact(pushed, calm + slow, [Injection("restart", 0, 10.0, until=19.5)], 0.0, 20.0)
    assert found.throughput == pytest.approx(0.5)
    assert (found.p99_during, found.p99_outside) == (pytest.approx(0.3), pytest.approx(0.01))
    assert not found.near


# --- the injector


def test_plan_faults_of_one_family_never_overlap():
    def act(_, __):
        yield from lasting(0.002)

    faults = [Fault(f"{family} {number}", family, act, lambda _: True, to_the_end=False)
              for family in (PROCESS, REDIS, NETWORK) for number in range(2)]  # fmt: skip
    injector = FaultInjector(SimpleNamespace(), faults, (0.0, 0.0), random.Random(3), at_once=2)
    while len(injector.injections) < 30:
        injector.step(time.monotonic())
    injector.abandon()
    injections = injector.injections[:30]
    for start in range(0, 30, 6):
        assert len({injection.kind for injection in injections[start : start + 6]}) == 6
    for family in (REDIS, NETWORK):
        own = [injection for injection in injections if injection.family == family]
        assert all(earlier.until <= later.at for earlier, later in pairwise(own))


def test_fault_ended_early_heals():
    healed, kept = [], []

    def black_hole():
        try:
            yield from lasting(60)
        finally:
            healed.append(True)

    def act(_, __):
        kept.append(black_hole())  # so that no garbage collection heals it
        return kept[0]

    faults = [Fault("hole", NETWORK, act, lambda _: True, to_the_end=False)]
    injector = FaultInjector(SimpleNamespace(), faults, (0, 0), random.Random(3))
    injector.step(1.0)
    assert (injector.busy, healed) == (True, [])
    injector.finish()
    assert (injector.busy, healed) == (False, [True])


# --- the contents of the files


def push(client, *serials):
    client.lpush("queue:chaos", *(encoded(args=[serial, 1.5], queue="chaos") for serial in serials))


@pytest.mark.proves("R15")
def test_witness_after_rollback_names_the_lost_pushes(make_server):
    server = make_server()
    files = Files(server.data_dir)
    with server.open() as client:
        push(client, 1, 2)
        # While an fsync lasts, Redis answers first and writes its file later.
        until(lambda: files.pushed_since({}) == {1, 2}, "the file has the first pushes")
        before = files.now
        push(client, 3)
        client.set("chaos:mark", "here 7")
        push(client, 4)
        push(client, 5, 6)
        until(lambda: files.pushed_since({}) == {1, 2, 3, 4, 5, 6}, "the file has every push")
        assert files.pushed_since(before) == {3, 4, 5, 6}
        server.kill()
        assert files.cut_back(b"here 7").pushed == {4, 5, 6}
        server.start()
        assert client.llen("queue:chaos") == 3
        push(client, 8)
        until(lambda: files.pushed_since({}) == {1, 2, 3, 8}, "the file has the push after the restart")


# --- the picture


def test_timeline_names_every_fault_without_script():
    injections = [
        Injection("kill", 7, 3.0, 3.0, PROCESS),
        Injection("a < b", 0, 4.0, 6.0, REDIS),
        Injection("power cut", 0, 8.0, 9.0, REDIS, forgets=(7.5, 8.0)),
    ]
    line = Timeline(
        'Round "x" & y', "facts", 0.0, 20.0, [1.0, 1.5, 12.0], [2.0], injections,
        [Life(0.5, 3.0), Life(0.5), Life(3.5)], [(3.0, 3.4), (3.0, 4.0)],
    )  # fmt: skip
    root = ET.fromstring(drawn(line))
    words = "".join(root.itertext())
    assert {"kill (1)", "a < b (1)", "power cut (1)", 'Round "x" & y'} <= {one.text for one in root.iter(f"{SVG}text")}
    assert "a < b at 4.0 s, for 2.0 s" in words
    assert not list(root.iter(f"{SVG}script"))
    kinds = [one.get("class") for one in root.iter(f"{SVG}rect")]
    assert (kinds.count("forgets"), kinds.count("forgets band")) == (2, 1)  # one of them in the legend
    lives = [one for one in root.iter(f"{SVG}path") if one.get("class") == "life"]
    # The third follows the first in its row.
    assert len({one.get("d").split(" ")[1].split("H")[0] for one in lives}) == 2
    assert len([one for one in root.iter(f"{SVG}circle") if one.get("class") == "recovered"]) == 2
