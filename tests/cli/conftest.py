import json

import pytest
from click.testing import CliRunner

from framework.cli import shards
from framework.cli.jobs import jobs as command
from tests.process.conftest import cold_site, proofs, release, site

__all__ = ["cold_site", "proofs", "release", "site"]


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
