"""Measure a mix of jobs as a platform has it: most classes follow the guidelines, and each job has the context of a request.

The contestants of other frameworks run plain jobs: as many, with the same arguments, in queues with the same weights.
"""

import json
import random
from dataclasses import dataclass
from itertools import product

from tests.bench.contestants import GUIDELINE, Launch
from tests.bench.drains import drained
from tests.bench.errors import RunFailed
from tests.bench.workload_run import WorkloadRun

IDEMPOTENT, LIMITED, TRACKED = 70, 60, 30
"""Percent of the jobs whose class has the policy. The policies are independent of each other."""

LARGE_EVERY = 20
"""One of so many jobs of the whole mix has large arguments: 5 %."""

RECORDS = 1_050
"""Of a large argument; as JSON they have about 150 kB."""

NAMESPACES = {"orders": 5, "search": 3, "mails": 2}
"""The namespaces with the weights of their queues; they have tenths of the jobs in the same proportion."""

AT_MOST_PER_S, AT_MOST_SMALL_PER_S = 4_000, 8_000
"""They decide how many jobs are pushed: the large arguments of more would take gigabytes."""
SEED = 7
WORDS = ("account", "batch", "cache", "delivery", "export", "forward", "gateway", "history", "import", "merge", "order")


@dataclass(frozen=True)
class Mix:
    """The jobs of one drain; ``large`` decides whether some have large arguments."""

    large: bool

    def prepare(self, site: WorkloadRun) -> None:
        """Write the plan, push its jobs with the contestant's own client, and keep a copy of the queues."""
        jobs = planned(self._jobs(site), large=self.large)
        plan = site.folder / "plan.json"
        plan.write_text(json.dumps({"jobs": jobs, "records": records()}))
        site.produce(GUIDELINE, plan=str(plan))
        site.store.keep()
        if site.contestant.is_framework:
            _check_locks(site, sum("Idempotent" in policies for _, _, policies, _ in jobs))

    def run(self, site: WorkloadRun) -> dict[str, float]:
        """Return the figures of one drain of the kept queues."""
        jobs = self._jobs(site)
        site.store.restore()
        served = tuple(f"{namespace},{weight}" for namespace, weight in NAMESPACES.items())
        with site.working(Launch(GUIDELINE, queues=served)) as running:
            reading = running.wait_for(jobs)
        figures = drained(site, running, reading, jobs, lasting=False)
        if site.contestant.is_framework:
            _check_locks(site, 0)
        return figures

    def _jobs(self, site: WorkloadRun) -> int:
        return site.jobs(AT_MOST_PER_S if self.large else AT_MOST_SMALL_PER_S)


WHOLE, SMALL = Mix(large=True), Mix(large=False)


def planned(count: int, *, large: bool) -> list[tuple[int, str, list[str], bool]]:
    """Return the jobs: number, namespace, policies of the class, and whether the arguments are large.

    The shares of the policies and of their combinations are exact in each thousand jobs.
    """
    combinations = list(product(range(10), repeat=3))
    random.Random(SEED).shuffle(combinations)
    places = [name for name, tenths in NAMESPACES.items() for _ in range(tenths)]
    return [
        (
            number,
            places[(number + number // LARGE_EVERY) % len(places)],
            _policies(*combinations[number % len(combinations)]),
            large and number % LARGE_EVERY == 0,
        )
        for number in range(count)
    ]


def _check_locks(site: WorkloadRun, expected: int) -> None:
    """Raise RunFailed unless so many jobs are locked: each idempotent job before the drain, none after it."""
    found = site.store.count("aw:lock:*")
    if found != expected:
        raise RunFailed(f"{found} jobs are locked instead of {expected}")


def _policies(first: int, second: int, third: int) -> list[str]:
    having = {
        "Idempotent": first < IDEMPOTENT // 10,
        "Limited": second < LIMITED // 10,
        "Tracked": third < TRACKED // 10,
    }
    return [name for name, has in having.items() if has]


def records() -> list[dict[str, int | str]]:
    """Return the large argument: records with ids, times and titles, as of a webhook."""
    chosen = random.Random(SEED)
    return [
        {
            "id": chosen.randrange(10**9),
            "created_at": f"2026-11-{chosen.randint(1, 28):02}T{chosen.randrange(24):02}:{chosen.randrange(60):02}:00Z",
            "state": chosen.choice(["opened", "closed", "merged"]),
            "author_id": chosen.randrange(100_000),
            "title": " ".join(chosen.choices(WORDS, k=5)),
        }
        for _ in range(RECORDS)
    ]
