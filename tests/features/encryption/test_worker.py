"""The periodic sweep of the payload store: by a leader alone, and no more often than all processes together may."""

from types import SimpleNamespace

import pytest

from framework.features.encryption.blob_store import FolderStore
from framework.features.encryption.offload import PayloadOffload
from framework.features.encryption.sweep import PayloadSweeper
from framework.features.encryption.worker import PayloadUpkeep, sweep_period_s
from framework.process_clock import process_clock
from tests.harness import until


@pytest.fixture
def now():
    seconds = [1_000.0]
    with process_clock.override(lambda: seconds[0], monotonic=lambda: seconds[0]):
        yield seconds


def test_leader_sweeps_once_in_a_period(tmp_path, now, monkeypatch):
    leads, sweeps = [False], []
    store = PayloadOffload(FolderStore(tmp_path), "", 1)
    sweeper = PayloadSweeper(store, 86_400, {})

    period = sweep_period_s(86_400)
    assert period == 21_600

    def sweep():
        sweeps.append(sweeper.claim(period))
        if len(sweeps) == 1:
            raise OSError("the store is away")
        if sweeps[-1]:
            sweeper.end_claim()

    upkeep = PayloadUpkeep(SimpleNamespace(leads=lambda: leads[0]), store, 86_400)
    monkeypatch.setattr(upkeep, "_sweep", sweep)

    def step(seconds, count):
        now[0] += seconds
        upkeep.step()
        until(lambda: len(sweeps) == count and not (upkeep._thread and upkeep._thread.is_alive()))

    step(3_600, 0)
    leads[0] = True
    step(1, 1)
    # A sweep has begun, and did not end: it may still run. After an hour it is repeated.
    for seconds, count in ((599, 1), (1, 2), (600, 3), (2_400, 4)):
        step(seconds, count)
    assert sweeps == [True, False, False, True]
    # It has ended: neither this nor another process begins one before the period has passed.
    for seconds, count in ((3_601, 5), (period - 3_602, 6), (600, 7)):
        step(seconds, count)
    assert sweeps[4:] == [False, False, True]
    (tmp_path / "last-sweep").write_bytes(b"\xff")
    assert sweeper.claim(period), "what cannot be read is no claim"
