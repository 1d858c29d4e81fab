from framework.admin import explain
from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_reader import Blocker, ExplainReader, ShownLimit
from framework.admin.snapshot import ShardSnapshot
from framework.feature import Feature, Late

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
    monkeypatch.setattr(explain, "features", lambda: (*made, Feature(name="silent")))
    return Explainer(ShardSnapshot(None, "main"), KnownClasses())


def test_blockers_of_features_come_in_the_order_of_stages(monkeypatch):
    found = explainer(monkeypatch, LastReader, FirstReader).of_class("W", "", is_run=True)
    assert found == [FIRST._replace(why="W "), LAST]


def test_limit_of_a_class_is_that_of_a_feature_else_none(monkeypatch):
    assert explainer(monkeypatch, LastReader).limit_of("W") == ShownLimit(None, "", 0)
    assert explainer(monkeypatch, LastReader, FirstReader).limit_of("W").limit == 3
