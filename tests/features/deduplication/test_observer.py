"""Check which jobs count as waiting for longer than their locks last."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from framework.declare import registry
from framework.declare.policy_options import Deduplicate
from framework.features.deduplication.observer import LockObserver, observer
from framework.telemetry.job_events import RecordedEvents, job_events
from tests.push.conftest import worker

NOW = 2_000_000_000.0


@pytest.fixture
def events(monkeypatch):
    found = RecordedEvents()
    monkeypatch.setattr(job_events, "emit", found.happened)
    with registry.isolated():
        yield found


def mail(**attributes):
    policy = Deduplicate("until_executing", ttl=timedelta(minutes=2))
    return worker("Mail", **{"idempotent": True, "deduplicate": policy, **attributes}).declaration()


def end(seen, declaration, *, waited_s=121.0, admitted=True, **fields):
    payload = {"enqueued_at": NOW - waited_s, **fields}
    seen.ended(
        SimpleNamespace(
            declaration=declaration, payload=payload, admitted=admitted, started_at=NOW, queue="mail", outcome=None
        )
    )


def test_job_that_outlives_its_lock_is_counted_and_logged_once(events, caplog):
    seen, declaration = LockObserver(), mail()
    end(seen, declaration)
    end(seen, declaration, waited_s=7_200)
    assert events.take() == [("LockOutlived", {"worker": "Mail", "count": 1, "queue": ""})] * 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert "waited for 2 min" in line
    assert "longer ttl" in line


def test_job_whose_lock_lasts_is_not_counted(events):
    seen, declaration = LockObserver(), mail()
    end(seen, declaration, waited_s=119.0)
    end(seen, declaration, admitted=False)
    end(seen, declaration, retry_count=0)
    end(seen, declaration, concurrency_limit_buffered_at=NOW)
    end(seen, declaration, enqueued_at="never")
    end(seen, mail(deduplicate=None))
    end(seen, mail(deduplicate=Deduplicate(ttl=timedelta(minutes=2), while_waiting=True)))
    end(seen, mail(deduplicate=Deduplicate("debounce", window=timedelta(seconds=1))))
    assert events.take() == []


def test_only_worker_processes_with_locks_observe(events, monkeypatch):
    monkeypatch.setattr(job_events, "is_worker", True)
    assert observer(None) is None
    mail()
    assert isinstance(observer(None), LockObserver)
    monkeypatch.setattr(job_events, "is_worker", False)
    assert observer(None) is None
