"""Test the features that an application hands over: which records are refused, and what their errors do."""

from types import SimpleNamespace

import pytest

from framework.declare.own_features import load_features
from framework.errors import ConfigurationError
from framework.execute.admission import StagedPolicy
from framework.feature import Feature, Hold, Late, LateCommand, Rights
from framework.finish.outcome import Deferred, Held
from framework.process.worker_parts import WorkerPart, own_part

NOWHERE = Late("nowhere:NOTHING")
GOOD = Feature(name="tenants", worker=NOWHERE, commands=(LateCommand("closed", "List.", NOWHERE),))
SCRIPTED = Feature(name="scripted", rights={"worker": Rights()}, locks=NOWHERE)
HOLDING = Feature(name="holding", holds=(Hold(name="own", field="own", part="time", waiter=NOWHERE),))
PAUSE = Feature(name="pause")
NUMBER = 7


def refusal(*names):
    with pytest.raises(ConfigurationError) as caught:
        load_features([f"{__name__}:{name}" for name in names], "config/application.yml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.key) == ("config/application.yml", "features")
    return problem.message


def test_own_features_are_loaded_in_their_order():
    assert load_features([f"{__name__}:GOOD"], "") == [GOOD]
    assert load_features([], "") == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["SCRIPTED"], "has rights, locks, which only features of the framework may have. Allowed: name, push,"),
        (["HOLDING"], "has holds, which only"),
        (["PAUSE"], "the name 'pause' belongs to another feature"),
        (["GOOD", "GOOD"], "the name 'tenants' belongs to another feature"),
        (["NUMBER"], "is no Feature"),
        (["MISSING"], "cannot be loaded: AttributeError"),
    ],
)
def test_own_feature_that_is_not_safe_is_refused(names, message):
    assert message in refusal(*names)


def test_own_features_with_one_command_are_refused(monkeypatch):
    other = Feature(name="other", commands=GOOD.commands)
    monkeypatch.setitem(globals(), "OTHER", other)
    assert "another feature has the command closed" in refusal("GOOD", "OTHER")


class Answers:
    """A policy that gives one answer, or raises it."""

    def __init__(self, answer):
        self.answer = answer

    def applies_to(self, declaration):
        return True

    def admit(self, request):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


REQUEST = SimpleNamespace(declaration=SimpleNamespace(wire_name="ExportWorker"))


def admitted(answer):
    part = own_part(GOOD, WorkerPart(policies=[StagedPolicy("end", Answers(answer))]))
    return part.policies[0].policy.admit(REQUEST)


def test_own_policy_defers_jobs():
    deferred = Deferred(30, "tenant_closed")
    assert admitted(deferred) is deferred
    assert admitted(None) is None


@pytest.mark.parametrize("answer", [RuntimeError("a mistake"), Held("paused"), "yes"])
def test_own_policy_that_fails_lets_jobs_run(answer):
    assert admitted(answer) is None


def test_own_periodic_work_that_fails_ends_no_round():
    done = []

    def fail():
        raise RuntimeError("a mistake")

    part = own_part(GOOD, WorkerPart(refresh=fail, periodic=[fail, lambda: done.append(1)]))
    for step in (part.refresh, *part.periodic):
        step()
    assert done == [1]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (WorkerPart(policies=[StagedPolicy("lock", Answers(None))]), "a policy of the stage lock"),
        (WorkerPart(sub_queues=frozenset({"fair"})), "sub_queues"),
        (WorkerPart(serve=print), "serve"),
    ],
)
def test_own_part_that_is_not_safe_is_refused(part, message):
    with pytest.raises(ConfigurationError, match=message):
        own_part(GOOD, part)
