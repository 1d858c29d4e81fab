"""Provide pytest's fixtures for the tests of an application's workers (docs/guides/testing.md).

pytest imports every installed plugin. So this module stands at the top of the package and imports nothing before a test asks for a
fixture: a suite without jobs pays for ``import framework`` alone, which loads neither redis nor pydantic.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from framework.testing import FakeJobs, RealJobs

_MODES = ("fake", "inline", "real")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that runs the same tests in another mode."""
    parser.getgroup("application-worker").addoption(
        "--application-worker",
        choices=_MODES,
        default="fake",
        help="mode of the fixture application_worker: fake (default), inline, or real with the configured Redis",
    )


@pytest.fixture
def application_worker(request: pytest.FixtureRequest) -> "Iterator[FakeJobs | RealJobs]":
    """Give each test empty jobs of its own: a fake, or the mode of ``--application-worker``."""
    mode = str(request.config.getoption("--application-worker"))
    with getattr(import_module("framework.testing"), mode)() as jobs:
        jobs.clear()
        yield jobs


@pytest.fixture
def application_worker_checks() -> "Callable[..., None]":
    """Return ``framework.testing.check_workers``, which checks every worker of the application."""
    check: Callable[..., None] = import_module("framework.testing").check_workers
    return check
