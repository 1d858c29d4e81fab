"""Test what waits for the end of a job, as its payload says."""

from framework.features.results.payload import WAIT_S
from framework.wire.waiters import awaited_job_of, held_fields, kept_state_s

CALLED = {"jid": "j", "aw_result": [60, "me"]}
COUNTED = {"jid": "j", "bid": "aw-b"}
KEPT = {**COUNTED, "aw_kept": 7}


def test_fields_are_those_of_the_features_that_wait() -> None:
    assert held_fields() == {"aw_accepted", "aw_result", "bid", "cron"}


def test_payload_without_a_readable_field_is_not_awaited() -> None:
    for payload in (None, {}, {"jid": "j"}, {**CALLED, "aw_result": 60}, {**COUNTED, "bid": "of Sidekiq Pro"}):
        assert awaited_job_of(payload) is None
    assert awaited_job_of({**COUNTED, "jid": ""}) is None
    assert awaited_job_of({"bid": "aw-b"}) is None


def test_each_waiter_is_told_its_words() -> None:
    both = awaited_job_of({**CALLED, **KEPT})
    assert both is not None
    assert both.told("done") == {"answer": ["j", "done", "60", "me", ""], "batch": ["aw-b", "j", "done", "", "7"]}
    assert both.told("failed") == {"batch": ["aw-b", "j", "failed", "", "7"]}
    counted = awaited_job_of(COUNTED)
    assert counted is not None
    assert counted.told("dead") == {"batch": ["aw-b", "j", "dead"]}


def test_answer_is_kept_for_callers_and_batches_with_results() -> None:
    found = {name: awaited_job_of(one) for name, one in (("called", CALLED), ("kept", KEPT), ("counted", COUNTED))}
    assert {name: one.keeps_answer for name, one in found.items()} == {"called": True, "kept": True, "counted": False}
    assert found["called"]._replace(answer="{}").named_answer() == "{}"
    assert found["kept"]._replace(answer='{"value":1}').named_answer() == '{"value":1,"of":["aw-b",7]}'


def test_state_of_a_called_job_lives_longer() -> None:
    assert (kept_state_s(CALLED), kept_state_s(COUNTED), kept_state_s({"jid": "j"})) == (WAIT_S, 0, 0)
