"""A round with recorded jobs of a task in two batches: kills, restarts of Redis and of PostgreSQL, then an account of every event."""

import os
import random

import pytest

from tests.chaos.rounds.tracked_round import RECOVERS_SOON, TrackedRound
from tests.postgres import running

JOBS = int(os.environ.get("CHAOS_TRACKED_JOBS", "2000"))
"""The jobs of the round. A campaign of the release runs 20,000 and more."""


@pytest.mark.campaign
@pytest.mark.proves("F24", "I21")
@pytest.mark.timeout(3600)
def test_tracked_jobs_end_right_under_all_faults(make_server, short_path, record_property):
    record_property("jobs", JOBS)
    record_property("seed", JOBS)
    with running(**RECOVERS_SOON) as postgres:
        account = TrackedRound(short_path, make_server(), postgres, JOBS, random.Random(JOBS)).run()
    print(account)  # noqa: T201 - the account of the round
