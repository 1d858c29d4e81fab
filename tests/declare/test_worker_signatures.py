"""Test the signatures of push methods, as ``help()`` and editors show them, and that overridden methods stay."""

import inspect
import pydoc

from framework import ApplicationWorker, LimitedCapacityWorker
from tests.tables import each_row


class ReportWorker(ApplicationWorker):
    """Build a report."""

    feature_category = "not_owned"

    def perform(self, delay: int, mode: str = "full", *more: int) -> None: ...


class SmallReportWorker(ReportWorker):
    def perform(self, delay: int) -> None: ...


class LimitedWorker(LimitedCapacityWorker):
    feature_category = "not_owned"
    max_running_jobs = 2

    def perform_work(self, shop_id: int) -> None: ...

    def remaining_work_count(self, shop_id: int) -> int:
        return shop_id


@each_row(
    ("method", "shown"),
    [
        (ReportWorker.perform_async, "(delay: int, mode: str = 'full', *more: int) -> str | None"),
        (ReportWorker.perform_inline, "(delay: int, mode: str = 'full', *more: int) -> None"),
        (SmallReportWorker.perform_async, "(delay: int) -> str | None"),
        (SmallReportWorker.perform_in, "(delay_: datetime.timedelta | float, /, delay: int) -> str | None"),
        (SmallReportWorker.perform_at, "(when: datetime.datetime | float, /, delay: int) -> str | None"),
        (LimitedWorker.perform_with_capacity, "(shop_id: int) -> list[str]"),
        (ApplicationWorker.perform_async, "(*args: P.args, **kwargs: P.kwargs) -> str | None"),
    ],
)
def test_push_method_shows_the_parameters_of_perform(method, shown):
    assert str(inspect.signature(method)) == shown


def test_help_shows_parameters_and_text():
    text = pydoc.plain(pydoc.render_doc(ReportWorker.perform_async))
    assert "perform_async(delay: int, mode: str = 'full', *more: int)" in text
    assert "Push the job; return its id" in text


def test_push_method_of_a_class_is_bound_to_it():
    assert ReportWorker.perform_async.__self__ is ReportWorker
    assert SmallReportWorker.perform_async.__func__ is not ReportWorker.perform_async.__func__


class Loud:
    @classmethod
    def perform_async(cls, *args, **kwargs):
        return "loud"


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"

    @classmethod
    def perform_in(cls, *args, **kwargs):
        return "base"


def test_overridden_push_methods_stay_through_inheritance():
    class One(Loud, ApplicationWorker):
        feature_category = "not_owned"

        def perform(self) -> None: ...

    class Two(Base):
        def perform(self) -> None: ...

    class Three(SmallReportWorker, Base):
        @classmethod
        def perform_at(cls, *args, **kwargs):
            return "three"

        def perform(self) -> None: ...

    assert (One.perform_async(), Two.perform_in(), Three.perform_in(), Three.perform_at()) == (
        "loud",
        "base",
        "base",
        "three",
    )
    assert str(inspect.signature(Three.perform_async)) == "() -> str | None"
