"""Define faults of worker processes: killed, frozen for longer than their lease, stopped with a short deadline,
replaced in order.
"""

import signal
import time

from tests.chaos.rounds.faults import PROCESS, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.side import Side

FREEZE_S = 22.0
"""Longer than the lease (15 s) and a sweep (5 s, give or take a fifth): others have reclaimed its jobs when it wakes.
"""


def _some_awake(side: Side) -> bool:
    return bool(side.fleet.awake)


def _several_awake(side: Side) -> bool:
    return len(side.fleet.awake) > 1


def _hit(side: Side, injection: Injection, number: int) -> None:
    injection.pid = side.rng.choice(side.fleet.awake)
    injection.at = time.monotonic()
    side.fleet.send(injection.pid, number)


@fault("kill", PROCESS, possible=_some_awake)
def kill(side: Side, injection: Injection) -> Steps:
    """Kill one process with -9, whatever it does."""
    _hit(side, injection, signal.SIGKILL)
    yield from ()


@fault("kill", PROCESS, possible=_several_awake)
def kill_one_of_several(side: Side, injection: Injection) -> Steps:
    """Kill one process while another is at work: the fault measures the cost of a death for the others."""
    _hit(side, injection, signal.SIGKILL)
    yield from ()


@fault("term", PROCESS, possible=_some_awake)
def term(side: Side, injection: Injection) -> Steps:
    """Stop one process, with the deadline of its round."""
    _hit(side, injection, signal.SIGTERM)
    yield from ()


@fault("freeze", PROCESS, possible=_several_awake)
def freeze(side: Side, injection: Injection) -> Steps:
    """Freeze one process until others have reclaimed its jobs; it wakes then."""
    _hit(side, injection, signal.SIGSTOP)
    side.fleet.asleep.add(injection.pid)
    try:
        yield from lasting(FREEZE_S)
    finally:
        side.fleet.asleep.discard(injection.pid)
        side.fleet.send(injection.pid, signal.SIGCONT)


@fault("roll", PROCESS, possible=_several_awake, to_the_end=True)
def roll(side: Side, injection: Injection) -> Steps:
    """Replace every process, one by one, by the supervisor."""
    rolled = side.fleet.rolled
    side.fleet.roll()
    while side.fleet.rolled == rolled:
        at_work = len(side.fleet.living)
        injection.fewest = at_work if injection.fewest is None else min(injection.fewest, at_work)
        yield


PROCESS_FAULTS: tuple[Fault, ...] = (kill, term, freeze)
