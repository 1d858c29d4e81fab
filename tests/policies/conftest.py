import shutil
from pathlib import Path

import pytest

from tests.harness import Site


@pytest.fixture
def site(short_path, redis, redis_url):
    made = Site(short_path, redis_url, warm=True)
    shutil.copy(Path(__file__).with_name("limited_jobs.py"), short_path / "jobs.py")
    yield made
    made.close()
