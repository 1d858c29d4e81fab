"""The life of a job from its payload, its place and what features record: its events by time, and its runs."""

from framework.admin.job_record import JobRecord
from framework.all_settings import load
from framework.pages.job_story import FailedRun, JobMoment, ShownPlace, attempts_of, timeline
from tests.harness import encoded

SIZES = load({}).size_limit


def job(**fields):
    return JobRecord("main", encoded("Job", jid="J1", **fields), SIZES)


def runs(found):
    return [(one["number"], one["failed_at"], one["error_class"]) for one in found]


def test_timeline_is_in_order_and_tells_an_event_once():
    found = timeline(
        [
            JobMoment(30.0, "ended", "database"),
            JobMoment(10.4, "pushed", "database"),
            JobMoment(10.0, "pushed", "payload"),
            # A second push, much later.
            JobMoment(20.0, "pushed", "payload"),
        ]
    )
    assert [(one["at"], one["what"], one["sources"]) for one in found] == [
        (10.0, "pushed", ["payload", "database"]),
        (20.0, "pushed", ["payload"]),
        (30.0, "ended", ["database"]),
    ]


def test_attempts_of_a_payload_have_its_first_and_last_failure():
    failed = {"failed_at": 5.0, "error_class": "KeyError", "error_message": "x"}
    assert runs(attempts_of(job(), None, ())) == []
    assert runs(attempts_of(job(retry_count=0, **failed), None, ())) == [(1, 5.0, "KeyError")]
    found = attempts_of(job(retry_count=3, retried_at=90.0, **failed), None, ())
    assert runs(found) == [(1, 5.0, None), (2, None, None), (3, None, None), (4, 90.0, "KeyError")]
    assert found[-1]["error_message"] == "x"


def test_attempts_join_recorded_failures_and_the_present_run():
    recorded = [FailedRun(90.2, "KeyError", "x"), FailedRun(40.0, "OSError", "y")]
    one = job(retry_count=2, failed_at=5.0, retried_at=90.0, error_class="KeyError", error_message="x")
    assert runs(attempts_of(one, None, recorded)) == [(1, 5.0, None), (2, 40.0, "OSError"), (3, 90.2, "KeyError")]
    # The last failure is not recorded yet.
    late = attempts_of(one, ShownPlace(None, "host:1:aa", 99.0), recorded[1:])
    assert runs(late) == [(1, 5.0, None), (2, 40.0, "OSError"), (3, 90.0, "KeyError"), (4, None, None)]
    assert (late[-1]["started_at"], late[-1]["process"]) == (99.0, "host:1:aa")
    # More are recorded than the payload counts: an operator has pushed it again.
    assert runs(attempts_of(job(), None, recorded)) == [(1, 40.0, "OSError"), (2, 90.2, "KeyError")]
