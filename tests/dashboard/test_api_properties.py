"""Ask the JSON API whatever its description allows: schemathesis makes the requests, and checks the answers."""

import hypothesis
import pytest
from hypothesis import strategies as st

from framework.dashboard import Caller, app
from tests.harness import encoded, examples

_SETTINGS = hypothesis.settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
)
_KNOWN = {"queue": "default", "jid": "J1", "class": "Job", "shard": "main"}
# The texts of paths are any names; which shards there are is no part of the description.
_LONG = ("/api/job/{jid}",)


def ask_everything(redis, count):
    """Ask each operation as often as ``count`` says for its path; return how many were asked."""
    import schemathesis  # here: each process of the tests would import it, a quarter of a second

    redis.sadd("queues", "default")
    redis.lpush("queue:default", encoded("Job", jid="J1"))
    redis.zadd("dead", {encoded("Job", jid="J2", error_class="E", error_message="x"): 1.0})
    return ask_schema(schemathesis.openapi.from_asgi("/api/openapi.json", app(lambda _: Caller("ann", "admin"))), count)


def ask_schema(schema, count, **request):
    """Ask what a schema describes, with these options of each request."""
    import schemathesis

    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if not count(operation.path):
            continue

        @hypothesis.settings(_SETTINGS, max_examples=count(operation.path))
        @hypothesis.given(
            case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE), data=st.data()
        )
        def ask(case, data):
            for words in (case.path_parameters, case.query):
                for name in words or {}:
                    if name in _KNOWN and data.draw(st.booleans()):
                        words[name] = _KNOWN[name]
            case.call_and_validate(**request)

        ask()
        asked += 1
    return asked


def test_api_answers_as_it_is_described(redis, shards):
    # The time goes into reading the description. Pages without words of their own are asked by the campaign, and, without words, by
    # the tests of routes and of costs.
    some = ("/api/dead", "/api/overview", "/api/limits", "/api/processes")
    assert (
        ask_everything(redis, lambda path: 4 if "{" in path and path not in _LONG else int(path in (*some, *_LONG)))
        > 10
    )


@pytest.mark.campaign
@pytest.mark.timeout(1_800)
def test_api_answers_as_it_is_described_with_many_words(redis, shards):
    ask_everything(redis, lambda path: examples(60))
