import pytest

from framework.push import transactions
from tests.push.conftest import jobs, pusher

__all__ = ["jobs", "pusher"]


@pytest.fixture
def sources(monkeypatch):
    """Return the sources of open transactions of this test alone, for ``add_source``."""
    found = []
    monkeypatch.setattr(transactions, "sources", found)
    monkeypatch.setattr("framework.push.client.sources", found)
    return found
