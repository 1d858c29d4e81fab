import pytest

from framework.features.fairness.push import add_sub_queues
from tests.admin.conftest import both_shards, shard
from tests.push.conftest import Pusher, calls, closed_circuit, jobs, push_mode, pusher, room

__all__ = ["both_shards", "calls", "closed_circuit", "jobs", "push_mode", "pusher", "room", "shard"]


@pytest.fixture(autouse=True)
def step(monkeypatch):
    """Let the pushes of these tests go through the step of the room."""
    opened = Pusher.open

    def with_step(self, *middleware, **options):
        return opened(self, *middleware, steps=[add_sub_queues], **options)

    monkeypatch.setattr(Pusher, "open", with_step)
