"""Check the loop over the items of a job, without Redis: what it saves, when it stops, and its errors."""

import asyncio
from datetime import datetime

import pytest

from framework.declare.progress import JobProgress
from framework.enumerators import items
from framework.errors import IterationError
from framework.features.iteration.run import IterationRun
from framework.wire.iteration_state import SavedIteration, encode_cursor
from tests.features.iteration.iterable_jobs import async_iterable, iterable
from tests.tables import each_row


class ScriptedRun(IterationRun):
    """A run that begins at a cursor, keeps what is saved, and is asked to stop after some items."""

    def __init__(self, cursor=b"null", stops_after=None, **fields):
        super().__init__()
        self.saved, self.failed = [], []
        self._begin, self._stops_after = SavedIteration(cursor=cursor, **fields), stops_after

    def begin(self):
        return self._begin

    def stop_reason(self):
        return "stop" if self.items == self._stops_after else None

    def save(self, cursor, progress):
        self.saved.append((cursor, progress.done))

    def save_failed(self, cursor, progress):
        self.failed.append((cursor, progress.done))


def run(worker, scripted=None):
    instance = worker()
    instance._aw_iteration = scripted or ScriptedRun()
    instance.perform()
    return instance


@pytest.fixture(autouse=True)
def isolated():
    from framework.declare import registry

    with registry.isolated():
        yield


def test_run_saves_the_cursor_of_the_item_that_is_next():
    worker, done = iterable(9)
    scripted = ScriptedRun(stops_after=2)
    instance = run(worker, scripted)
    assert done == ["start", 0, 1, "stop"]
    assert (scripted.saved, scripted.stopped_by, instance.cursor) == ([(b"2", 2)], "stop", 2)
    scripted = ScriptedRun(b"2", done=2)
    assert run(worker, scripted).progress.done == 9
    assert done[4:] == ["resume", *range(2, 9), "stop", "complete"]
    assert scripted.stopped_by is None


def test_run_saves_at_each_flush_interval():
    scripted = ScriptedRun()
    run(iterable(4, flush_interval=0.000001)[0], scripted)
    assert scripted.saved == [(b"1", 1), (b"2", 2), (b"3", 3)] or scripted.saved[-3:] == [
        (b"1", 1),
        (b"2", 2),
        (b"3", 3),
    ]


def test_run_with_a_maximum_ends_one_item_at_least():
    worker, done = iterable(3, max_iteration_runtime=0.000001)
    scripted = ScriptedRun()
    run(worker, scripted)
    assert (done, scripted.stopped_by, scripted.saved) == (["start", 0, "stop"], "max_runtime", [(b"1", 1)])


def fails(self, item):
    if item == 1:
        raise KeyError("one")


def test_failed_item_is_the_next_after_its_error():
    worker, done = iterable(3, fails)
    scripted = ScriptedRun()
    with pytest.raises(KeyError):
        run(worker, scripted)
    assert (done, scripted.failed) == (["start", 0, 1, "stop"], [(b"1", 1)])


def test_failed_completion_repeats_the_last_item():
    def on_complete(self):
        raise KeyError("mail")

    scripted = ScriptedRun()
    with pytest.raises(KeyError):
        run(iterable(2, on_complete=on_complete)[0], scripted)
    assert scripted.failed == [(b"1", 2)]


def test_failed_start_saves_nothing():
    def on_start(self):
        raise KeyError("file")

    scripted = ScriptedRun()
    with pytest.raises(KeyError):
        run(iterable(2, on_start=on_start)[0], scripted)
    assert scripted.failed == []


def test_generator_is_closed_at_a_stop():
    closed = []

    def build_enumerator(self, *, cursor):
        try:
            yield from ((number, number) for number in range(9))
        finally:
            closed.append("closed")

    run(iterable(0, build_enumerator=build_enumerator)[0], ScriptedRun(stops_after=1))
    assert closed == ["closed"]


def gives(result):
    return lambda self, *, cursor: result


@each_row(
    ("result", "words"),
    [
        (None, r"returned None: return an iterator of \(item, cursor\), an empty list if there is no work"),
        (7, r"returned 7, which cannot be iterated"),
        ([7], r"gave 7: each element must be a pair"),
        (["ab"], r"gave 'ab': each element must be a pair"),
        ([(1, 2, 3)], r"must be a pair"),
        ([(1, datetime(2026, 1, 1))], r"does not survive JSON"),  # noqa: DTZ001 - any
        ([(1, (1, 2))], r"does not survive JSON"),
        ([(1, object())], r"is no JSON value"),
        ([(1, float("nan"))], r"is no JSON value"),
        ([(1, "x" * 70_000)], r"has 70,002 bytes, and 65,536 are allowed"),
    ],
)
def test_wrong_enumerator_fails_before_its_item(result, words):
    worker, done = iterable(0, build_enumerator=gives(result))
    with pytest.raises(IterationError, match=words):
        run(worker)
    assert not {7, 1} & set(done)


def test_empty_enumerator_completes():
    worker, done = iterable(0, build_enumerator=gives([]))
    run(worker)
    assert done == ["start", "stop", "complete"]


def test_wrong_cursor_of_an_earlier_release_is_named():
    def build_enumerator(self, *, cursor):
        return ((number, number) for number in range(cursor["page"], 3))

    worker, _ = iterable(0, build_enumerator=build_enumerator)
    with pytest.raises(TypeError) as caught:
        run(worker, ScriptedRun(b"17"))
    (note,) = caught.value.__notes__
    assert "resumed at the cursor 17" in note
    assert "reset_iteration" in note


def test_stored_cursor_that_is_no_json_is_named():
    with pytest.raises(IterationError, match=r"the stored cursor is no JSON: .*reset_iteration"):
        run(iterable(2)[0], ScriptedRun(b"{"))


def test_hook_gets_the_arguments_if_it_takes_them():
    found = []
    body = {
        "build_enumerator": lambda self, days, dry=False, *, cursor: [],
        "each_iteration": lambda self, item, *args: None,
        "on_start": lambda self, days, dry=False: found.append((days, dry)),
        "on_stop": lambda self: found.append("stop"),
        "on_complete": lambda self, *args: found.append(args),
    }
    worker, _ = iterable(0, **body)
    worker().perform(3)
    assert found == [(3, False), "stop", (3,)]


def test_item_that_counts_itself_is_not_counted_twice():
    def count(self, item):
        self.progress.done += 10

    assert run(iterable(3, count)[0]).progress.done == 30


def test_async_run_takes_a_plain_iterator_too():
    async def go(self, item):
        await asyncio.sleep(0)

    worker, done = async_iterable(0, go, build_enumerator=gives(iter([(1, 1), (2, 2)])))
    asyncio.run(worker().perform())
    assert done == ["start", 1, 2, "stop", "complete"]


def test_async_failed_item_is_the_next_after_its_error():
    async def fail(self, item):
        fails(self, item)

    scripted, (worker, done) = ScriptedRun(), async_iterable(3, fail)
    instance = worker()
    instance._aw_iteration = scripted
    with pytest.raises(KeyError):
        asyncio.run(instance.perform())
    assert (done, scripted.failed) == (["start", 0, 1, "stop"], [(b"1", 1)])


def test_progress_estimates_from_the_run_time():
    progress = JobProgress(done=10, total=30, earlier_s=100.0)
    assert progress.rate == pytest.approx(0.1, rel=0.5)
    assert progress.eta.total_seconds() == pytest.approx(200, rel=0.5)
    assert JobProgress().rate is None
    assert JobProgress(done=5).eta is None
    for wrong in (-1, 1.5, True, "7"):
        with pytest.raises(ValueError, match="give a whole number from 0"):
            progress.total = wrong


def test_saved_iteration_estimates_without_a_total():
    assert SavedIteration(done=10, runtime_s=5.0).rate == 2.0
    assert SavedIteration(done=10, runtime_s=5.0).eta_s is None
    assert SavedIteration(done=10, runtime_s=5.0, total=20).eta_s == 5.0
    assert SavedIteration(done=10, runtime_s=5.0, total=5).eta_s == 0.0


def test_cursor_of_json_is_encoded():
    assert encode_cursor({"page": [1, None, "ä"]}) == '{"page":[1,null,"ä"]}'.encode()


def test_lost_job_calls_no_hook():
    class Lost(ScriptedRun):
        def begin(self):
            self.stopped_by = "lost"
            return SavedIteration()

    worker, done = iterable(2)
    run(worker, Lost())
    assert done == []


def test_progress_counts_the_items_that_ruby_has_run():
    worker, done = iterable(9, build_enumerator=lambda self, *, cursor: items(range(9), cursor=cursor))
    # Sidekiq saves its cursor without a count: items 0 to 6 have run, and two of them were counted here.
    assert run(worker, ScriptedRun(b"7", done=2)).progress.done == 9
    assert [one for one in done if isinstance(one, int)] == [7, 8]
