"""Delays of jobs whose class or version this process lacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.declare import registry
from framework.errors import NewerVersionError
from framework.execute.outcomes import UnknownClassDelays
from framework.finish.outcome import ForeignClass, UnknownClass
from framework.process_clock import process_clock
from framework.wire.job import UNKNOWN_COUNT, UNKNOWN_SINCE
from tests.harness import payload
from tests.tables import each_row

NOW = 1_800_000_000.0
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)


@pytest.fixture(autouse=True)
def frozen_time():
    with process_clock.override(lambda: NOW):
        yield


def classes(*foreign, max_wait_s=86_400.0):
    return UnknownClassDelays(foreign, max_wait_s)


@pytest.fixture(autouse=True)
def draw(monkeypatch):
    """Return a function that sets the random numbers."""

    def set_number(number):
        monkeypatch.setattr("random.random", lambda: number)

    set_number(0.5)
    return set_number


def waiting_payload(count, since, **fields):
    return payload("Gone", **{UNKNOWN_COUNT: count, UNKNOWN_SINCE: since}, **fields)


def test_wait_grows_from_one_to_sixty_seconds(draw):
    draw(0.0)
    delays = [classes().outcome(waiting_payload(count, NOW - 5)).delay_s for count in (0, 1, 2, 3, 4, 5, 6, 1_000)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    draw(0.999)
    late = [classes().outcome(waiting_payload(count, NOW - 5)).delay_s for count in (0, 5, 6)]
    assert late == [pytest.approx(1.5, abs=0.01), pytest.approx(48, abs=0.1), 60.0]


def test_first_wait_is_counted_and_dated():
    first = classes().outcome(payload("Gone"))
    assert (first.count, first.since, first.gives_up) == (1, NOW, False)
    again = classes().outcome(waiting_payload(7, NOW - 60))
    assert (again.count, again.since, again.gives_up) == (8, NOW - 60, False)


@pytest.mark.parametrize(("waited_s", "gives_up"), [(9.9, False), (10.0, True), (-1_000.0, False)])
def test_wait_ends_after_the_longest_wait(waited_s, gives_up):
    outcome = classes(max_wait_s=10.0).outcome(waiting_payload(3, NOW - waited_s))
    assert outcome.gives_up is gives_up
    assert outcome.since <= NOW  # another host's clock is ahead: its time would put off the end


@each_row("name", ["failed_at", "retried_at"])
@each_row("milliseconds", [False, True], ids=["seconds", "as Sidekiq 8 writes it"])
def test_wait_restarts_when_the_job_has_run_meanwhile(name, milliseconds):
    ran = NOW - 60
    job = waiting_payload(9, NOW - 90_000, **{name: int(ran * 1000) if milliseconds else ran})
    outcome = classes().outcome(job)
    assert (outcome.count, outcome.since, outcome.gives_up) == (1, NOW, False)
    assert (
        classes().outcome(waiting_payload(9, NOW - 90_000, failed_at=NOW - 90_001)).gives_up
    )  # the failure was before the wait


@given(count=ANYTHING, since=ANYTHING, failed=ANYTHING)
def test_odd_fields_of_other_writers_give_a_wait(count, since, failed):
    for one in (classes(), classes("Gone")):
        outcome = one.outcome(waiting_payload(count, since, failed_at=failed))
        assert 0.5 < outcome.delay_s <= 60 or (outcome.delay_s == 0 and isinstance(outcome, ForeignClass))
        assert outcome.count >= 1


def test_foreign_patterns_match_whole_names():
    chosen = classes("Ruby::*", "Legacy?Job", "One")
    for name in ("Ruby::A", "Ruby::A::B", "Legacy1Job", "One"):
        assert isinstance(chosen.outcome(payload(name)), ForeignClass), name
    for name in ("Ruby", "MyRuby::A", "ruby::A", "LegacyJob", "OneMore", "Two\nOne"):
        assert isinstance(chosen.outcome(payload(name)), UnknownClass), name


def test_foreign_job_returns_soon_and_without_limit():
    delays = [
        classes("Gone").outcome(waiting_payload(count, NOW - 1e6)).delay_s for count in (0, 1, 2, 3, 50, 1_000_001)
    ]
    assert delays == pytest.approx([0.0, 0.9, 0.0, 1.8, 0.0, 4.5])  # every other delay is zero
    assert classes("Gone").outcome(waiting_payload(6, NOW - 1e6)).count == 7


def test_newer_version_waits_even_where_a_pattern_matches():
    class Declared:
        wire_name, version = "Gone", 1

    outcome = classes("Gone").outcome_of_version(waiting_payload(2, NOW - 5), Declared, 4)
    assert isinstance(outcome.error, NewerVersionError)
    assert (outcome.error.version, outcome.error.known, outcome.count) == (4, 1, 3)


def test_nearest_names_are_cached_for_bounded_names(monkeypatch):
    asked = []
    monkeypatch.setattr(registry, "nearest_name", lambda name: asked.append(name) or name.lower())
    chosen = classes()
    errors = [chosen.outcome(payload(name)).error for name in ("A", "A", "B")]
    assert ([error.nearest for error in errors], asked) == (["a", "a", "b"], ["A", "B"])
    for number in range(3_000):
        chosen.outcome(payload(str(number)))
    assert len(chosen._nearest) <= 1_000
