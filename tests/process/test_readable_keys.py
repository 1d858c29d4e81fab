"""A boot warns of classes whose keys show texts that their log lines hide."""

import pytest

from framework import ApplicationWorker
from framework.declare import registry
from framework.features.concurrency.attributes import ConcurrencyScope
from framework.limiter import bucket
from framework.process.boot_warnings import warn_readable_keys
from tests.harness import server_lines


def by_first(args):
    return args[0]


@pytest.fixture
def isolated():
    with registry.isolated():
        yield


@pytest.mark.parametrize(
    ("attributes", "shown"),
    [
        ({"fair_by": by_first}, "fair_by"),
        ({"limiter": bucket("a", 1, "day").by(by_first)}, "limiter"),
        ({"concurrency_limit": 5, "concurrency_scope": ConcurrencyScope(by_first, limit=2)}, "concurrency_scope"),
        ({"fair_by": by_first, "loggable_arguments": ("email",)}, None),
        ({"fair_by": by_first, "encrypt": True}, None),
        ({"fair_by": "user"}, None),
        ({"limiter": bucket("a", 1, "day")}, None),
        ({}, None),
    ],
)
def test_boot_warns_of_keys_made_of_hidden_texts(isolated, attributes, shown):
    class MailWorker(ApplicationWorker):
        feature_category = "not_owned"
        vars().update(attributes)

        def perform(self, email: str, number: int) -> None: ...

    with server_lines("info") as lines:
        warn_readable_keys()
        found = lines()
    assert [line["event_name"] for line in found] == (["boot.readable_keys"] if shown else [])
    for line in found:
        assert line["hidden_arguments"] == ["email"]
        assert f"({shown})" in line["message"]
