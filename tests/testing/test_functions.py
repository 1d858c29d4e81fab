"""Test that the functions of ``framework.testing`` take a function that is registered as a job, as they take a class."""

from framework import background, sharding
from framework.declare import registry
from framework.testing import assert_enqueued, assert_idempotent, drain, enqueued, fake, perform_one

SENT = set[str]()


@background(feature_category="not_owned", queue="default", idempotent=True)
def send_note(text: str) -> None:
    SENT.add(text)


def test_functions_stand_for_their_classes_in_tests():
    # Each test of this folder begins without classes.
    registry.register(send_note.worker)
    SENT.clear()
    with fake() as jobs:
        send_note.perform_async("a")
        send_note.set(queue="other").perform_async("b")
        assert (
            [job.args for job in enqueued(send_note)]
            == [job.args for job in enqueued(send_note.worker)]
            == [["a"], ["b"]]
        )
        assert_enqueued(send_note, "a")
        assert perform_one(send_note).args == ["a"]
        assert (drain(send_note), jobs.retries(send_note), jobs.dead(send_note), jobs.held(send_note)) == (
            1,
            [],
            [],
            [],
        )
        assert_idempotent(send_note, "c", state=lambda: set(SENT))
    assert {"a", "b", "c"} == SENT
    with fake():
        assert sharding.router.shard_for(send_note) == "main"
