"""Test the checks of the other kinds of jobs in a round: each way to break a promise is found."""

from random import Random

import pytest

from tests.chaos.rounds.class_load import ClassLoad
from tests.chaos.rounds.effects import BEGUN, ENDED, Effect
from tests.chaos.rounds.faults import Injection
from tests.chaos.rounds.jobs import CHAIN, OTHERS
from tests.chaos.rounds.producer import AcceptedPushes

BEGAN = 1_000.0


def ran(serial, begun, ended=None, pid=7):
    effects = [Effect(BEGUN, serial, pid, BEGAN + begun)]
    return effects + ([Effect(ENDED, serial, pid, BEGAN + ended)] if ended is not None else [])


@pytest.mark.parametrize("kind", OTHERS)
def test_lost_and_repeated_jobs_of_each_kind_are_found(kind):
    load = ClassLoad(10.0, Random(1), [])
    load._times[kind] = AcceptedPushes([BEGAN] * 3, [BEGAN] * 3)
    first, second = OTHERS[kind], OTHERS[kind] + 1
    effects = [*ran(first, 1, 2), *ran(first, 4, 5), *ran(second, 1, pid=8), *ran(second, 3, 4)]
    found = load.found(effects, [Injection("kill", 8, BEGAN + 1.5)])
    assert [one.kind for one in found.kinds] == list(OTHERS)
    account = next(one.account for one in found.kinds if one.kind == kind)
    assert (account.lost, account.unexplained, account.repeated) == ([2], [0], 2)


def test_chain_that_stops_before_the_end_is_found():
    load = ClassLoad(10.0, Random(1), [])
    broken = [*ran(CHAIN, 1), *ran(CHAIN, 2)]
    assert load.found(broken, [])[1:] == (2, False)
    assert load.found([*broken, *ran(CHAIN, 3, 4)], [])[1:] == (3, True)
