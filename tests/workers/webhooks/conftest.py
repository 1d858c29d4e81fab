"""A receiver on this machine, and the permission to call it."""

from collections.abc import Iterator

import pytest

from demo.receiver import Receiver, receiving
from workers.webhooks.addresses import ALLOWED_VARIABLE
from workers.webhooks.http_post import TIMEOUT_VARIABLE


@pytest.fixture(scope="session")
def one_receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def receiver(one_receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> Receiver:
    monkeypatch.setenv(ALLOWED_VARIABLE, "127.0.0.0/8")
    one_receiver.requests.clear()
    return one_receiver


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a short timeout for requests without an answer; only the deadline tests check its length."""
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.3")
