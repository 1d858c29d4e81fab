"""Check the text of `jobs explain` about a job that an unhealthy database deferred."""

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.features.health.attributes import DeferOnHealth
from framework.features.health.explain import describe_deferral

JOB = {"class": "W", "deferred": True, "deferred_by": "database_health_check", "deferred_count": 2}


def declaration(policy):
    body = {"feature_category": "not_owned", "perform": lambda self: None, "defer_on_health": policy}
    with registry.isolated():
        return type("HeedingWorker", (ApplicationWorker,), body).declaration()


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (DeferOnHealth("ci"), "an indicator said that the database ci is overloaded"),
        (
            DeferOnHealth("ci", max_deferrals=9),
            "an indicator said that the database ci is overloaded; it runs after 9 deferrals",
        ),
        (DeferOnHealth(resolver=lambda args: ("ci", ())), "an indicator said that its database is overloaded"),
        (None, "an indicator said that its database is overloaded"),
    ],
)
def test_describe_deferral_names_database_and_maximum(policy, text):
    assert describe_deferral(JOB, declaration(policy)) == text


def test_describe_deferral_without_a_loaded_class_is_general():
    assert describe_deferral(JOB, None) == "an indicator said that its database is overloaded"


def test_describe_deferral_by_another_policy_is_empty():
    assert describe_deferral({**JOB, "deferred_by": "feature_flag"}, declaration(DeferOnHealth("ci"))) == ""
