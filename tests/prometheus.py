"""Find Prometheus and promtool."""

import os
import shutil

import pytest


def _found(program: str) -> str:
    """Return the path of a program of Prometheus; skip the test without it, but never in CI."""
    path = shutil.which(program)
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no {program}, and this run may not do without: run `scripts/setup --system`")
        pytest.skip(f"no {program}: Prometheus has not checked it (`scripts/setup --system` brings it)")
    return path


@pytest.fixture(scope="session")
def promtool() -> str:
    return _found("promtool")


@pytest.fixture(scope="session")
def prometheus() -> str:
    return _found("prometheus")
