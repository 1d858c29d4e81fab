"""Run the commands on jobs, flags, cron, batches, limiters and tasks with words at random: each ends with an exit code of its own."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from framework.cli.main import main
from framework.command_line import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE, EXIT_USAGE
from framework.wire import keys
from tests.cli.test_help import COMMANDS
from tests.harness import encoded, examples

GROUPS = ("jobs", "flags", "cron", "batches", "limiters", "tasks", "workflows")
ENDLESS = {"--watch"}
"""Options of a command that runs until Ctrl-C."""

CODES = {EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_CONFIGURATION}
VERBS = sorted(name for name in COMMANDS if name.split()[0:1] and name.split()[0] in GROUPS and " " in name)
ODD = (
    *("", "-", "--", "-1", "0", "1e9", "NaN", "a b", "ü", "\x00", "*", "a=b", "\udcff"),
    *("queue:default", "dead", "j1", "NoteWorker", "[1]", "10m", "--yes", "--json"),
)


def words_of(verb):
    options = {word for one in COMMANDS[verb].params if isinstance(one, click.Option) for word in one.opts}
    word = st.sampled_from(sorted({"--help", *options} - ENDLESS)) | st.sampled_from(ODD) | st.text(max_size=8)
    return st.lists(word, max_size=6).map(lambda words: [*verb.split(), *words])


@pytest.fixture
def installation(redis, redis_url, monkeypatch, tmp_path):
    """A project whose Redis has a job in each place."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}}")
    redis.sadd(keys.QUEUES, "default")
    redis.lpush(keys.queue("default"), encoded("NoteWorker", jid="j1"))
    for place in (keys.DEAD, keys.RETRY, keys.SCHEDULE):
        redis.zadd(place, {encoded("NoteWorker", jid=f"j-{place}"): 4e9})


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(VERBS).flatmap(words_of))
@example(["jobs", "retry", "--class", ""])
@example(["jobs", "list", "queue:"])
@example(["jobs", "delete", "\x00", "--yes"])
@example(["cron", "remove", "\udcff"])
@example(["tasks", "list", "--owner", "\udcff"])
def test_words_at_random_end_with_a_known_code(installation, words):
    ended = CliRunner().invoke(main, words, prog_name="application-worker", input="n\n")
    assert ended.exception is None or isinstance(ended.exception, SystemExit), (words, ended.exception)
    assert ended.exit_code in CODES, (words, ended.output)
    assert "Traceback" not in ended.output, (words, ended.output)
