"""The table at the end, and ``report.json``."""

import argparse
import json
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prove_parts.prover import Verdict

from chaos_parts.account import ACKNOWLEDGED_LATE, Account, percentile
from chaos_parts.blows import Blow
from chaos_parts.producer import Producer

RECOVERY_S = {"cluster": 2.0, "bare": 25.0}
"""Promised longest time from the death of a process to the next run of what it was running (docs/redis.md, design 7)."""

RESUMED_S = 5.0
"""Promised longest time from the moment Redis is well again to the next job that begins (issue 3)."""

_SHOWN = 5


@dataclass
class Outcome:
    """What came out of one round."""

    name: str
    mode: str
    jobs: int
    slots: int
    seconds: float
    account: Account
    blows: Sequence[Blow]
    producer: Producer
    set_aside: dict[str, int]
    surprises: list[str]
    keys_left: list[str]
    processes_left: list[int]
    told: Counter[str]
    history: Verdict

    @property
    def checks(self) -> list[tuple[str, str, str, bool]]:
        """What was promised: name, what was found, what is allowed, whether it held."""
        found, allowed = self.account, self.slots + ACKNOWLEDGED_LATE
        redis = sum(count for kind, count in found.extra.items() if kind in _redis_kinds(self.blows))
        slowest, limit = max(found.recoveries, default=0.0), RECOVERY_S[self.mode]
        resumed = max(found.resumed, default=0.0)
        return [
            ("jobs accepted", f"{self.producer.accepted:,}", f"{self.jobs:,}", self.producer.done),
            ("lost", _some(found.lost), "0", not found.lost),
            ("most extra runs by one blow at a process", f"{found.worst}", f"{allowed}", found.worst <= allowed),
            ("extra runs by blows at Redis", f"{redis}", "0", redis == 0),
            ("extra runs nobody caused", _some(found.unexplained), "0", not found.unexplained),
            ("set aside (retry, dead, interrupted)", str(self.set_aside or 0), "0", not self.set_aside),
            ("slowest recovery", f"{slowest:.2f} s", f"{limit:g} s", slowest <= limit),
            ("longest standstill when Redis is back", f"{resumed:.2f} s", f"{RESUMED_S:g} s", resumed <= RESUMED_S),
            (
                "errors without a type of ours at the producer",
                _some(self.producer.untyped),
                "0",
                not self.producer.untyped,
            ),
            ("ends of processes that nobody caused", _some(self.surprises), "0", not self.surprises),
            ("keys left", _some(self.keys_left), "0", not self.keys_left),
            ("processes left", _some(self.processes_left), "0", not self.processes_left),
            ("instants at which a job was in no key, or two", f"{self.history.broken}", "0", not self.history.broken),
        ]

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        return all(ok for _, _, _, ok in self.checks)

    @property
    def facts(self) -> dict[str, Any]:
        """Numbers that nothing was promised about, and those behind the checks."""
        found = self.account
        times = found.recoveries
        return {
            "seconds": round(self.seconds, 1),
            "jobs": self.jobs,
            "runs": found.runs,
            "blows": dict(Counter(blow.kind for blow in self.blows)),
            "runs cut off": found.interrupted,
            "extra runs": dict(found.extra),
            "recoveries": len(times),
            "recovery p50, p95, max (s)": [round(percentile(times, share), 3) for share in (0.5, 0.95, 1.0)],
            "producer: refusals": dict(self.producer.refusals),
            "producer: jobs maybe written twice": len(self.producer.doubtful),
            "instants replayed from Redis's history": self.history.groups,
            "producer: slowest push (s)": round(self.producer.slowest_s, 2),
        }


def show(outcomes: Sequence[Outcome]) -> None:
    """Print what was found, broken promises marked."""
    for outcome in outcomes:
        print(f"\nRound {outcome.name} ({outcome.mode})")
        for name, value in outcome.facts.items():
            shown = ", ".join(f"{key} {count:,}" for key, count in value.items()) if isinstance(value, dict) else value
            print(f"  {name:<46} {shown if shown != '' else 'none'}")
        print(f"\n  {'promise':<46} {'found':>12}   {'allowed':>8}")
        for name, value, allowed, ok in outcome.checks:
            print(f"  {name:<46} {value:>12}   {allowed:>8}   {'ok' if ok else 'BROKEN'}")
        for violation in outcome.history.violations[:1]:
            print(f"\n{violation}")
    broken = sum(not outcome.held for outcome in outcomes)
    print(f"\n{'Every promise held.' if not broken else f'{broken} of {len(outcomes)} rounds broke a promise.'}")


def write(outcomes: Sequence[Outcome], wish: argparse.Namespace, seed: int, paths: Sequence[Path]) -> None:
    """Write the same as JSON, with the log lines by event and every blow."""
    content = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "options": {**vars(wish), "seed": seed},
        "held": all(outcome.held for outcome in outcomes),
        "rounds": [_as_json(outcome) for outcome in outcomes],
    }
    for path in paths:
        path.write_text(json.dumps(content, indent=1, default=str) + "\n")


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "round": outcome.name,
        "mode": outcome.mode,
        "held": outcome.held,
        **outcome.facts,
        "checks": [dict(zip(("promise", "found", "allowed", "held"), check, strict=True)) for check in outcome.checks],
        "lost": outcome.account.lost,
        "unexplained": outcome.account.unexplained,
        "keys left": outcome.keys_left,
        "broken instants": [str(violation) for violation in outcome.history.violations],
        "surprises": outcome.surprises,
        "untyped errors": outcome.producer.untyped,
        "refusals by text": outcome.producer.reasons,
        "log lines": dict(outcome.told.most_common()),
        "all recoveries (s)": sorted(round(seconds, 3) for seconds in outcome.account.recoveries),
        "all blows": [vars(blow) for blow in outcome.blows],
    }


def _redis_kinds(blows: Sequence[Blow]) -> set[str]:
    return {blow.kind for blow in blows if not blow.pid}


def _some(found: Sequence[object]) -> str:
    if not found:
        return "0"
    shown = ", ".join(str(one) for one in found[:_SHOWN])
    return f"{len(found):,}: {shown}{', ...' if len(found) > _SHOWN else ''}"
