"""The table from the end of a job to its event. ``tests/finish/test_endings.py`` brings a real job to each row."""

import re

from framework.errors import BusinessError
from framework.features.tasks import change as module
from framework.features.tasks.change import (
    EVENT_ENDS,
    EventChange,
    EventEnd,
    Message,
    clean_text,
    decode_change,
    event_end,
    event_text,
    has_valid_jid,
    params_later,
    params_of,
)
from framework.features.tasks.database import STATUSES
from framework.finish import endings
from framework.finish.endings import ENDINGS
from framework.finish.outcome import Discarded, Failed
from framework.finish.retry import Retry
from tests.harness import ROOT


def test_every_ending_has_an_event():
    assert set(EVENT_ENDS) == set(ENDINGS)
    assert {end.status for end in EVENT_ENDS.values() if end} <= set(STATUSES)


def test_business_failures_and_dropped_jobs_have_own_rows():
    business = Failed(BusinessError("no price"))
    assert event_end(endings.DELETED, business) == ("failed", "failed")
    assert event_end(endings.DELETED, Failed(ValueError("x"))) == ("error", "not_retried")
    assert event_end(endings.DISCARDED, Discarded("no", "middleware")) == ("failed", "dropped")
    assert event_end(endings.DISCARDED, Discarded("enough")) == ("finish", "discarded")
    assert event_text(Failed(ValueError("x")), Retry({}, 15.2)).reason == "waiting for retry in 15 s: x"


def test_params_show_what_log_lines_show():
    payload = {"args": [1, "secret", True, 2.5]}
    assert params_of(payload, None, whole=False) == ('[1,"[FILTERED]","[FILTERED]",2.5]', False)
    assert params_of(payload, None, whole=True) == ('[1,"secret",true,2.5]', True)
    # Asked for before the run, and read after it: the job has changed its arguments.
    for args in ([1, "x"], [1, ["x"]]):
        changed = {"args": args}
        later, before = params_later(changed, None, whole=True), params_of(changed, None, whole=True)
        args[-1] = args[-1][:0]
        args.append(3)
        assert later() == before
    assert params_of({"args": [1]}, None, whole=False) == ("[1]", True)
    assert params_of({"args": list(range(10_000))}, None, whole=False) == ('["[FILTERED]"]', False)
    assert params_of({"args": ["xx"], "compressed": True}, None, whole=True) == ('["[COMPRESSED]"]', False)


def test_texts_are_cut_to_what_a_database_stores():
    assert clean_text("a\x00b\ud800") == "a�b?"
    cut = clean_text("x" * 1_000_000)
    assert len(cut) < 66_000
    assert cut.endswith("... (934,464 characters more)")
    assert [has_valid_jid(one) for one in ("j", "", None, "a\x00", "x" * 256)] == [True, False, False, False, False]


def test_change_survives_the_spool():
    change = EventChange("j", "end", 1.5, "failed", "failed", reason="é", messages=[Message("m", 1.0, '{"a":1}')])
    assert decode_change(change.encode()) == change


def test_guide_shows_the_state_of_every_end():
    _, table, _ = re.split(r"<!-- /?event ends -->", (ROOT / "docs" / "guides" / "tasks.md").read_text())
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.strip().splitlines()[2:]]
    shown = {state for row in rows for state in re.findall(r"`(\w+)`", row[2])}
    ends = {end.state for end in EVENT_ENDS.values() if end is not None}
    named = {one.state for one in vars(module).values() if isinstance(one, EventEnd)}
    assert shown == ends | named | {"queued", "scheduled", "working"}
