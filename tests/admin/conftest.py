import pytest

from tests.harness import Site


@pytest.fixture
def site(short_path, redis, redis_url):
    made = Site(short_path, redis_url, warm=True)
    yield made
    made.close()
