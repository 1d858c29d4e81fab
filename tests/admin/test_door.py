"""Test the door of ``framework.admin``: its names, its shards, shards that do not answer, and read-only blocks."""

import pytest

from framework import admin
from framework.admin import access
from framework.errors import ReadOnlyError, ShardUnavailableError, UnknownShardError
from framework.store.connect import server_time


def test_admin_lists_its_public_names_and_refuses_others():
    assert admin.__all__ == sorted(admin.__all__)
    assert set(admin.__all__) <= set(dir(admin))
    assert all(hasattr(admin, name) for name in admin.__all__)
    with pytest.raises(AttributeError, match="no attribute 'stat'"):
        _ = admin.stat


def test_action_in_a_read_only_block_is_refused():
    with admin.read_only(), pytest.raises(ReadOnlyError, match=r"Queue\.clear\(\) is refused, and nothing was changed"):
        access.check_writable("Queue.clear()")
    access.check_writable("Queue.clear()")


def test_step_covers_every_shard_and_reports_the_silent_one(silent_second):
    found = access.ask(None, lambda shard: server_time(shard.client))
    assert list(found.by_shard) == ["main"]
    assert list(found.unanswered) == ["second"]
    found = access.collect(None, lambda shard: [(server_time(shard.client), shard.name)[1]])
    assert (found, list(found.unanswered)) == (["main"], ["second"])
    with pytest.raises(ShardUnavailableError, match="shard 'second' is unavailable"):
        access.ask("second", lambda shard: server_time(shard.client))


def test_loop_over_shards_raises_the_error_after_the_last_item(silent_second):
    seen = []
    with pytest.raises(ShardUnavailableError, match="shard 'second' is unavailable"):
        seen.extend(access.iterate(None, lambda shard: [(server_time(shard.client), shard.name)[1]]))
    assert seen == ["main"]


def test_unknown_shard_gets_the_nearest_name(silent_second):
    with pytest.raises(UnknownShardError, match="did you mean 'second'"):
        access.ask("secnd", lambda shard: shard.name)
