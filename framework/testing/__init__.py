"""Test workers and the code that pushes jobs: on a Redis of the tests (``fake``, ``inline``), or on the configured one (``real``).

    from framework.testing import assert_enqueued, drain, fake

    with fake():
        register_user("ada@example.org")
        assert_enqueued(WelcomeMailWorker, 1)
        drain()

pytest finds the fixture ``application_worker`` by itself: a fake that is empty for each test. Names are loaded at their first use.
"""

from typing import TYPE_CHECKING, Any

from framework.lazy_names import load_name, public_names

if TYPE_CHECKING:
    from framework.errors import EmptyQueueError, EndlessJobsError, ModeError
    from framework.testing.fake_clock import FakeClock
    from framework.testing.fake_jobs import FakeJobs
    from framework.testing.job_checks import assert_idempotent, is_json, json_type
    from framework.testing.modes import assert_enqueued, clear, drain, enqueued, fake, inline, perform_one, real
    from framework.testing.real_jobs import RealJobs
    from framework.testing.worker_checks import check_workers

__all__ = [
    "EmptyQueueError",
    "EndlessJobsError",
    "FakeClock",
    "FakeJobs",
    "ModeError",
    "RealJobs",
    "assert_enqueued",
    "assert_idempotent",
    "check_workers",
    "clear",
    "drain",
    "enqueued",
    "fake",
    "inline",
    "is_json",
    "json_type",
    "perform_one",
    "real",
]

_MODULES = {
    "EmptyQueueError": "framework.errors",
    "EndlessJobsError": "framework.errors",
    "FakeClock": "framework.testing.fake_clock",
    "FakeJobs": "framework.testing.fake_jobs",
    "ModeError": "framework.errors",
    "RealJobs": "framework.testing.real_jobs",
    "assert_idempotent": "framework.testing.job_checks",
    "check_workers": "framework.testing.worker_checks",
    "is_json": "framework.testing.job_checks",
    "json_type": "framework.testing.job_checks",
}
"""Module of each name that is not in ``modes``. Type checkers read it from the imports above."""


def __getattr__(name: str) -> Any:
    return load_name(globals(), name, _MODULES.get(name, "framework.testing.modes"))


def __dir__() -> list[str]:
    return public_names(globals())
