"""Check what ends a running job."""

from datetime import timedelta

import pytest

from framework.admin.explain import Explainer, KnownClasses
from framework.admin.explain_reader import ShardSnapshot
from framework.declare import registry
from tests.execute.processor_bench import worker


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
