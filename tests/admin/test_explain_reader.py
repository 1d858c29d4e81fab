from datetime import timedelta

import pytest

from framework.admin import explain
from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_reader import Blocker, ExplainReader, KeptFact, ShardSnapshot, ShownFacts, ShownLimit
from framework.declare import registry
from framework.feature import Feature, Late
from tests.execute.processor_bench import worker

FIRST, LAST = Blocker("first", "why", "remedy"), Blocker("last", "why", "remedy")


class LastReader(ExplainReader):
    def blockers(self, stage, worker, queue):
        return [LAST] if stage == "lock" else []


class FirstReader(ExplainReader):
    def blockers(self, stage, worker, queue):
        return [FIRST._replace(why=f"{worker} {queue}")] if stage == "end" else []

    def limit_of(self, worker):
        return ShownLimit(3, "1/3", 1)


def explainer(monkeypatch, *readers):
    made = tuple(Feature(name=one.__name__, explain=Late(f"{__name__}:{one.__name__}")) for one in readers)
    monkeypatch.setattr(explain, "all_features", lambda: (*made, Feature(name="silent")))
    return Explainer(ShardSnapshot(None, "main"), KnownClasses())


def test_blockers_of_features_come_in_the_order_of_stages(monkeypatch):
    found = explainer(monkeypatch, LastReader, FirstReader).of_class("W", "", is_run=True)
    assert found == [FIRST._replace(why="W "), LAST]


def test_limit_of_a_class_is_that_of_a_feature_else_none(monkeypatch):
    assert explainer(monkeypatch, LastReader).limit_of("W") == ShownLimit(None, "", 0)
    assert explainer(monkeypatch, LastReader, FirstReader).limit_of("W").limit == 3


class EntryReader(ExplainReader):
    kept_name = "entries"

    def origin(self, payload):
        return ShownFacts([("entry", payload["entry"])], {"entry": payload["entry"]})

    def kept(self, jid):
        return KeptFact(f"its entry of {jid}", {"jid": jid})


class NoteReader(ExplainReader):
    def __init__(self, snapshot):
        super().__init__(snapshot)
        self.notes = 0

    def origin(self, payload):
        return ShownFacts([("note", "by hand")], {"note": True})

    def count(self, jobs):
        self.notes += len(jobs)

    def of_class(self, worker):
        return ShownFacts([("notes", f"{self.notes} of {worker}")], {"notes": self.notes})


def test_facts_of_features_are_joined_in_their_order(monkeypatch):
    made = explainer(monkeypatch, EntryReader, NoteReader)
    assert made.origin({"entry": "nightly"}) == ShownFacts(
        [("entry", "nightly"), ("note", "by hand")], {"entry": "nightly", "note": True}
    )


def test_kept_facts_have_the_names_of_their_features(monkeypatch):
    assert explainer(monkeypatch, NoteReader, EntryReader).kept("j") == {
        "entries": KeptFact("its entry of j", {"jid": "j"})
    }


def test_facts_of_a_class_follow_the_count_of_its_jobs(monkeypatch):
    made = explainer(monkeypatch, EntryReader, NoteReader)
    made.count([{}, {}])
    assert made.facts_of_class("W") == ShownFacts([("notes", "2 of W")], {"notes": 2})


class WaitsReader(ExplainReader):
    def scheduled(self, payload):
        return [FIRST]

    def deferral(self, payload, times, remedy):
        return Blocker("own", times, remedy) if payload.get("deferred_by") == "own" else None


def test_deferral_of_a_feature_stands_for_the_general_one(monkeypatch):
    made = explainer(monkeypatch, WaitsReader)
    assert made.deferrals({}) == [FIRST]
    (own,) = made.deferrals({"class": "W", "deferred": True, "deferred_by": "own", "deferred_count": 2})
    assert own.code == "own"
    assert own.why == "2 times"
    assert made.deferrals({"class": "W", "deferred": True, "deferred_by": "other"})[1].code == "deferred"


@pytest.mark.parametrize(
    ("attributes", "payload", "text"),
    [
        (None, {}, "its end"),
        (None, {"timeout": 90}, "its end, or its timeout of 1 min 30 s"),
        ({}, {}, "its end"),
        ({"timeout": timedelta(minutes=2)}, {}, "its end, or its timeout of 2 min"),
        ({"timeout": timedelta(minutes=2)}, {"timeout": 5}, "its end, or its timeout of 5 s"),
        ({"isolation": "process"}, {}, "its end; it runs in a process of its own"),
    ],
)
def test_end_of_a_run_names_its_timeout_and_process(attributes, payload, text):
    with registry.isolated():
        declarations = {} if attributes is None else {"W": worker(lambda self: None, **attributes).declaration()}
        explainer = Explainer(ShardSnapshot(None, "main"), KnownClasses(declarations))
        assert explainer.end_of_run({"class": "W", **payload}) == text
