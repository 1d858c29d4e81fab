from collections.abc import Iterator, Mapping

import pytest

from framework.admin.port import Access, opener
from framework.all_settings import load
from framework.shard.shard import Shard
from framework.shard.shards import Shards
from tests.harness import opened

SILENT_URL = "redis://127.0.0.1:1/0"


def bound(shards: Mapping[str, Shard]) -> Iterator[Shards]:
    """Let ``framework.admin`` use these shards."""
    made, settings = Shards(shards), load({})
    with opener.override(lambda: Access(made, settings)):
        yield made
    made.close()


@pytest.fixture
def shard(redis_url):
    """Let ``framework.admin`` use one shard, ``main``, and return it."""
    for shards in bound({"main": opened(redis_url)}):
        yield shards["main"]


@pytest.fixture
def both_shards(redis_url, second_redis_url):
    """Let ``framework.admin`` use two shards that answer, ``main`` and ``second``."""
    yield from bound({"main": opened(redis_url), "second": opened(second_redis_url, "second")})


@pytest.fixture
def silent_second(redis_url):
    """Let ``framework.admin`` use ``main``, which answers, and ``second``, which does not."""
    yield from bound({"main": opened(redis_url), "second": opened(SILENT_URL, "second")})
