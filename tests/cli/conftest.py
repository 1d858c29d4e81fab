import json
from contextlib import closing

import pytest
from click.testing import CliRunner

from framework.cli.main import jobs as command
from framework.terminal import shards
from tests.harness import Site
from tests.process.conftest import cold_site, proofs, release

__all__ = ["cold_site", "proofs", "release"]


@pytest.fixture
def two_shards(short_path, redis, redis_url, second_redis, second_redis_url):
    """A site with the shards main and second."""
    with closing(Site(short_path, redis_url, second_redis_url, warm=True)) as made:
        yield made


@pytest.fixture
def run(site, request):
    """Return a function that runs ``COMMAND`` of the module with these words, and returns stdout, or stderr of a failure."""

    def call(*words, status=0):
        done = site.run(request.module.COMMAND, *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stderr

    return call


@pytest.fixture
def jobs(redis, redis_url, monkeypatch, tmp_path):
    """Yield a function that runs a command of the group in this process and returns what it printed, parsed with ``--json``."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}}")
    opened = []
    open_shards = shards.open_shards
    monkeypatch.setattr(
        shards, "open_shards", lambda *given, **named: opened.append(open_shards(*given, **named)) or opened[-1]
    )

    def run(*words, status=0, answer=None):
        ended = CliRunner().invoke(command, list(words), input=answer, prog_name="application-worker jobs")
        assert ended.exit_code == status, ended.output
        return json.loads(ended.stdout) if "--json" in words else ended.output

    yield run
    for one in opened:
        one.close()
