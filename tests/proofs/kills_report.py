"""Report a run of ``scripts/prove kills``: the counts, the broken promises, and the table."""

from collections.abc import Sequence
from typing import Any

from redis import Redis

from tests.proofs import leftover_keys
from tests.proofs.kills_account import KillAccount
from tests.proofs.worker_pools import WorkerPool

ACKNOWLEDGED_LATE = 32
"""The jobs of one process, besides the running ones, that a kill may repeat (docs/internals/redis.md: batches)."""

_SHOWN = 20
_TEN_MILLION = 10_000_000


def account(account: KillAccount, accepted: int, seconds: float, pool: WorkerPool, client: Redis) -> dict[str, Any]:
    """Return the account of the run, after the processes have ended."""
    lost = [serial for serial in account.lost() if serial < accepted]
    killed = [life for life in account.lives if life.killed_us is not None]
    return {
        "jobs": account.jobs,
        "accepted": accepted,
        "begun": account.begun,
        "ended": account.ended,
        "lost": len(lost),
        "lost serials": lost[:_SHOWN],
        "kills": len(killed),
        "killed in flight": account.killed,
        "different jobs among them": account.killed_jobs,
        "runs": account.runs,
        "ended and run again": sum(life.again for life in killed),
        "most second runs by one kill": max((life.cut_off + life.again for life in killed), default=0),
        "second runs allowed by one kill": pool.slots + ACKNOWLEDGED_LATE,
        "second runs without a kill": account.unexplained[:_SHOWN],
        "set aside": leftover_keys.set_aside(client),
        "unexpected ends and errors": pool.unexpected[:_SHOWN],
        # The names of dead processes stay for 39 s and a sweep, and no process is left to sweep.
        "keys left": [leak for leak in leftover_keys.leaks(client) if not leak.startswith(leftover_keys.REGISTRY)],
        "log lines about recovered jobs": pool.taken_back,
        "recovery": _times(account.recoveries_us),
        "seconds": round(seconds, 1),
        "killed in flight, a second": round(account.killed / max(0.1, seconds)),
    }


def broken(found: dict[str, Any]) -> list[str]:
    """Return the broken promises."""
    promises = {
        "every job was accepted": found["accepted"] == found["jobs"],
        "none was lost": found["lost"] == 0,
        "no second run without a kill": not found["second runs without a kill"],
        "no kill repeats more jobs than its process held": (
            found["most second runs by one kill"] <= found["second runs allowed by one kill"]
        ),
        "none was set aside": not found["set aside"],
        "nothing ended or failed by itself": not found["unexpected ends and errors"],
        "no key is left": not found["keys left"],
        "no right was refused": not found["rights refused"],
    }
    return [promise for promise, held in promises.items() if not held]


def show(found: dict[str, Any]) -> None:
    """Print the table."""
    recovery = found["recovery"]
    hours = _TEN_MILLION / max(1, found["killed in flight, a second"]) / 3600
    rows = {
        "jobs accepted": f"{found['accepted']:,} of {found['jobs']:,}",
        "jobs ended": f"{found['ended']:,}",
        "jobs lost": f"{found['lost']:,} {found['lost serials'] or ''}",
        "killed in flight": f"{found['killed in flight']:,} ({found['different jobs among them']:,} different jobs) "
        f"by {found['kills']:,} kills",
        "runs": f"{found['runs']:,}: one per job, one per job killed in flight, {found['ended and run again']:,} that had ended "
        "and were not yet acknowledged",
        "most second runs by one kill": f"{found['most second runs by one kill']:,} "
        f"(allowed {found['second runs allowed by one kill']:,})",
        "second runs without a kill": found["second runs without a kill"] or 0,
        "set aside": found["set aside"] or 0,
        "unexpected ends and errors": found["unexpected ends and errors"] or 0,
        "keys left": found["keys left"] or 0,
        "rights refused": found["rights refused"] or 0,
        "from the kill to the next begin": ", ".join(f"{name} {value:.2f} s" for name, value in recovery.items()),
        "killed in flight, a second": f"{found['killed in flight, a second']:,} over {found['seconds']:,.0f} s: "
        f"10 million take {hours:,.1f} hours here",
        "so with 95 % confidence less is lost than": f"1 in {found['different jobs among them'] // 3:,}",
    }
    print()
    for name, value in rows.items():
        print(f"  {name:42} {value}")
    print("\n" + ("; ".join(f"NOT: {promise}" for promise in found["broken"]) or "Every promise held."))


def _times(times_us: Sequence[int]) -> dict[str, float]:
    ordered = sorted(times_us)
    last = len(ordered) - 1
    share = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: ordered[min(last, int(len(ordered) * part))] / 1e6 for name, part in share.items() if ordered}
