"""Start the periodic tasks of a process: what they need to know is read before the first of them pushes a job."""

import pytest

from framework.all_settings import load
from framework.execute.job_log import JobLog
from framework.process.components import ProcessTasks
from framework.process.heartbeat import PeriodicTask
from framework.process.signals import SignalQueue
from framework.process.worker_options import WorkerOptions
from framework.route.router import open_router
from framework.shard.shard import Shard
from framework.store.embedded import endpoint_of
from framework.testing.fake_worker import silent_log
from framework.wiring.worker_process import build_worker
from tests.proofs.machine.worker import close_components


@pytest.fixture
def components(tmp_path):
    settings = load({}, tmp_path)
    shard = Shard("main", endpoint_of(settings, "main"), role="test")
    options = WorkerOptions("main", (("default", 0),), 1, 1.0)
    log = JobLog(silent_log(), jobs=False)
    parts = build_worker(settings, open_router(settings), options, shard, "host:1:a", log, supervisor=None)
    yield parts
    close_components(parts, shard)


def test_tasks_start_reads_flags_before_the_poller(components, monkeypatch):
    """Else a due job could be pushed again as if its deduplication flag were off."""
    begun = []
    monkeypatch.setattr(PeriodicTask, "start", lambda task: begun.append(task.name))
    monkeypatch.setattr(ProcessTasks, "read_pauses", lambda _: begun.append("pauses"))
    monkeypatch.setattr(components.parts, "refresh", lambda: begun.append("flags"))
    signals = SignalQueue()
    ProcessTasks(components, signals).start()
    signals.close()
    assert begun[0] == "lease"
    assert begun.index("pauses") < begun.index("flags") < begun.index("poller")
