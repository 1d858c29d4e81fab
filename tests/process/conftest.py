import pytest

from tests.harness import Site, until


@pytest.fixture
def cold_site(short_path, redis, redis_url):
    """A site without a warm fork server, for tests of the imports and connections of a start."""
    made = Site(short_path, redis_url)
    yield made
    made.close()


@pytest.fixture
def proofs(redis):
    """Return a function that waits for ``count`` records of the jobs under a name."""

    def read(name, count=1):
        found = until(
            lambda: redis.llen(f"proof:{name}") >= count and redis.lrange(f"proof:{name}", 0, -1), f"proof {name}"
        )
        return [one.decode() for one in found]

    return read


@pytest.fixture
def release(redis):
    return lambda name: redis.set(f"release:{name}", 1)
