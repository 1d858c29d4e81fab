"""Define the rounds: which faults, how often, on what kind of Redis, with which supervisor."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.chaos.rounds.failover_faults import FAILOVER_FAULTS
from tests.chaos.rounds.faults import Fault
from tests.chaos.rounds.network_faults import NETWORK_FAULTS
from tests.chaos.rounds.options import ROUNDS, TRACKED
from tests.chaos.rounds.process_faults import (
    PROCESS_FAULTS,
    freeze,
    kill,
    kill_one_of_several,
    roll,
    term,
    term_one_of_several,
)
from tests.chaos.rounds.redis_faults import (
    REDIS_FAULTS,
    client_kill,
    full_memory,
    kill_redis,
    power_cut,
    restart,
    script_flush,
)
from tests.chaos.rounds.replicated import ReplicatedStore
from tests.chaos.rounds.stores import SingleStore, Store

Supervision = Literal["bare", "cluster"]


@dataclass(frozen=True)
class Round:
    """The plan of one round."""

    name: str
    mode: str
    """The name that distinguishes it from the other rounds of its name."""
    supervision: Supervision
    """``bare``: the round starts successors of ended processes; ``cluster``: ``scripts/cluster`` does."""
    faults: tuple[Fault, ...]
    pause_s: tuple[float, float]
    """The time between two injections."""
    store: Callable[[Path], Store] = SingleStore
    at_once: int = 1
    rest_s: float = 0.0
    """The least time between the end of a fault and the next: a recovered process is seen at work."""
    long: int = 0
    """Long jobs among the short ones, that a deadline or a freeze can cut."""
    timeout_s: float = 25.0
    forgets: bool = False
    """Whether a server may forget answered writes: its jobs leave no end marks in it then."""
    witnessed: bool = False
    """Whether the producer waits for a replica at each push."""
    processes: int = 3
    """The number of workers of the shard with the faults, unless the options name another."""
    per_second: float | None = None
    """The limited jobs that are pushed per second, and also jobs with keys (``policy_load``); ``None``: no
    such jobs.
    """
    guards: bool = False
    """Whether jobs with a limiter, sealed and isolated jobs are pushed too (``guard_load``)."""
    calls: bool = False
    """Whether called and profiled jobs are pushed too (``call_load``)."""


def planned(options: argparse.Namespace) -> list[Round]:
    """Return the requested rounds, without the one of recorded jobs."""
    names = (
        ROUNDS
        if not options.round or "all" in options.round
        else tuple(dict.fromkeys(name for name in options.round if name != TRACKED))
    )
    return [one for name in names for one in _in_mode(_MAKERS[name](options), options.mode)]


def _in_mode(rounds: list[Round], mode: str) -> list[Round]:
    """Return the rounds of the mode; all rounds when none has the mode."""
    return [one for one in rounds if one.mode == mode] or rounds


def _kills(options: argparse.Namespace) -> list[Round]:
    supervisions: tuple[Supervision, ...] = ("bare", "cluster")
    every = options.every or 0.7
    return [Round("kill", supervision, supervision, (kill,), (every, every)) for supervision in supervisions]


def _freezes(_: argparse.Namespace) -> list[Round]:
    faults = (freeze, freeze, kill, term)
    return [Round("freeze", "bare", "bare", faults, (4.0, 4.0), at_once=10, long=60, timeout_s=1.0)]


def _rolls(_: argparse.Namespace) -> list[Round]:
    """Return the round with a deadline of 1 s amid jobs of 1.5 s: replaced processes may exceed it."""
    return [Round("rolling", "cluster", "cluster", (roll,), (2.0, 2.0), rest_s=2.0, long=60, timeout_s=1.0)]


def _redis(_: argparse.Namespace) -> list[Round]:
    """Return one round with faults in which no write may be forgotten, one with faults that cost up to a second of
    answers.
    """
    kept = (*(one for one in REDIS_FAULTS if one is not power_cut), kill, term)
    return [
        Round("redis", "kept", "bare", kept, (2.0, 2.5), rest_s=1.0, long=60, timeout_s=1.0),
        Round("redis", "cut", "bare", (power_cut, kill_redis, kill), (2.5, 4.0), rest_s=1.0, forgets=True),
    ]


def _network(_: argparse.Namespace) -> list[Round]:
    return [Round("network", "bare", "bare", NETWORK_FAULTS, (2.0, 4.0), _behind_a_proxy, rest_s=1.5)]


def _failovers(_: argparse.Namespace) -> list[Round]:
    """Return one round with a default Redis, one with a replica for each write: ``min-replicas-to-write 1``, and WAIT
    at the producer.
    """
    return [
        Round("failover", "plain", "cluster", FAILOVER_FAULTS, (10.0, 12.0), ReplicatedStore, rest_s=6.0, forgets=True),
        Round(
            "failover",
            "witnessed",
            "cluster",
            FAILOVER_FAULTS,
            (10.0, 12.0),
            _witnessed,
            rest_s=6.0,
            forgets=True,
            witnessed=True,
        ),
    ]


def _mixed(_: argparse.Namespace) -> list[Round]:
    single = (kill, kill, *PROCESS_FAULTS, *REDIS_FAULTS, *NETWORK_FAULTS)
    replicated = (kill, kill, *PROCESS_FAULTS, *FAILOVER_FAULTS, script_flush, client_kill, full_memory)
    often = (1.0, 5.0)
    return [
        Round("mixed", "single", "cluster", single, often, _behind_a_proxy, 2, long=60, timeout_s=1.0, forgets=True),
        Round(
            "mixed", "sentinels", "cluster", replicated, often, ReplicatedStore, 2, long=60, timeout_s=1.0, forgets=True
        ),
    ]


def _limits(options: argparse.Namespace) -> list[Round]:
    """Return one round without faults, for the comparison of the throughput, and one with kills."""
    every = options.every or 2.0
    modes: dict[str, tuple[Fault, ...]] = {"calm": (), "kills": (kill_one_of_several,)}
    return [
        Round("limits", mode, "cluster", faults, (every, every), processes=5, per_second=110.0)
        for mode, faults in modes.items()
    ]


def _guards(options: argparse.Namespace) -> list[Round]:
    every = options.every or 4.0
    faults = (kill_one_of_several, term_one_of_several)
    return [Round("guards", "kills", "cluster", faults, (every, every), rest_s=0.5, guards=True)]


def _calls(options: argparse.Namespace) -> list[Round]:
    """Return the round whose callers wait for answers: no write may be forgotten."""
    every = options.every or 3.0
    faults = (kill_one_of_several, kill_one_of_several, term_one_of_several, kill_redis, restart, client_kill)
    return [Round("calls", "kept", "cluster", faults, (every, every), rest_s=1.0, calls=True)]


def _behind_a_proxy(folder: Path) -> Store:
    return SingleStore(folder, behind_a_proxy=True)


def _witnessed(folder: Path) -> Store:
    return ReplicatedStore(folder, witnesses=1)


_MAKERS: dict[str, Callable[[argparse.Namespace], list[Round]]] = {
    "kill": _kills,
    "freeze": _freezes,
    "rolling": _rolls,
    "redis": _redis,
    "network": _network,
    "failover": _failovers,
    "mixed": _mixed,
    "limits": _limits,
    "guards": _guards,
    "calls": _calls,
}
