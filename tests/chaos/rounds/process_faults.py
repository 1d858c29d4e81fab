"""Define faults of worker processes: killed, frozen for longer than their lease, stopped with a short deadline,
replaced in order.
"""

import signal
import time

from tests.chaos.rounds.faults import PROCESS, Fault, Injection, Steps, fault, lasting
from tests.chaos.rounds.round_shard import RoundShard

FREEZE_S = 22.0
"""Longer than the lease (15 s) and a sweep (5 s, give or take a fifth): others have reclaimed its jobs when it wakes.
"""


def _some_awake(round_shard: RoundShard) -> bool:
    return bool(round_shard.workers.awake)


def _several_awake(round_shard: RoundShard) -> bool:
    return len(round_shard.workers.awake) > 1


def _several_at_work(round_shard: RoundShard) -> bool:
    return len(round_shard.workers.at_work) > 1


def _hit(round_shard: RoundShard, injection: Injection, number: int, *, at_work: bool = False) -> None:
    workers = round_shard.workers
    injection.pid = round_shard.rng.choice(workers.at_work if at_work else workers.awake)
    injection.at = time.monotonic()
    round_shard.workers.send(injection.pid, number)


@fault("kill", PROCESS, possible=_some_awake)
def kill(round_shard: RoundShard, injection: Injection) -> Steps:
    """Kill one process with -9, whatever it does."""
    _hit(round_shard, injection, signal.SIGKILL)
    yield from ()


@fault("kill", PROCESS, possible=_several_at_work)
def kill_one_of_several(round_shard: RoundShard, injection: Injection) -> Steps:
    """Kill one process while another is at work: the fault measures the cost of a death for the others."""
    _hit(round_shard, injection, signal.SIGKILL, at_work=True)
    yield from ()


@fault("term", PROCESS, possible=_some_awake)
def term(round_shard: RoundShard, injection: Injection) -> Steps:
    """Stop one process, with the deadline of its round."""
    _hit(round_shard, injection, signal.SIGTERM)
    yield from ()


@fault("term", PROCESS, possible=_several_at_work)
def term_one_of_several(round_shard: RoundShard, injection: Injection) -> Steps:
    """Stop one process while another is at work."""
    _hit(round_shard, injection, signal.SIGTERM, at_work=True)
    yield from ()


@fault("freeze", PROCESS, possible=_several_awake)
def freeze(round_shard: RoundShard, injection: Injection) -> Steps:
    """Freeze one process until others have reclaimed its jobs; it wakes then."""
    _hit(round_shard, injection, signal.SIGSTOP)
    round_shard.workers.asleep.add(injection.pid)
    try:
        yield from lasting(FREEZE_S)
    finally:
        round_shard.workers.asleep.discard(injection.pid)
        round_shard.workers.send(injection.pid, signal.SIGCONT)


@fault("roll", PROCESS, possible=_several_awake, to_the_end=True)
def roll(round_shard: RoundShard, injection: Injection) -> Steps:
    """Replace every process, one by one, by the supervisor."""
    rolled = round_shard.workers.rolled
    round_shard.workers.roll()
    while round_shard.workers.rolled == rolled:
        at_work = len(round_shard.workers.living)
        injection.fewest = at_work if injection.fewest is None else min(injection.fewest, at_work)
        yield


PROCESS_FAULTS: tuple[Fault, ...] = (kill, term, freeze)
