"""Run the two workers of the page on coming from Sidekiq, one in Ruby and one in Python, on one queue."""

import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.docs.test_examples import blocks
from tests.harness import HURRIED
from tests.interop.conftest import HERE, Gems, started

PAGE = HERE.parents[1] / "docs" / "learn" / "coming_from_sidekiq.md"
READY = "\nSidekiq.configure_server { |one| one.on(:startup) { $stdout.puts('ready for orders') || $stdout.flush } }\n"


@pytest.fixture
def orders(tmp_path: Path, environment: dict[str, str]) -> Path:
    """Write both files of the page into a folder, which Python imports from."""
    files = {block.mark.removeprefix("file="): block.text for block in blocks(PAGE) if block.mark.startswith("file=")}
    (tmp_path / "orders.rb").write_text(files["orders.rb"] + READY)
    (tmp_path / "orders.py").write_text(files["orders.py"])
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(HERE.parents[1])])
    return tmp_path


PUSH_IN_RUBY = "20.times { |number| OrderWorker.perform_async(number, true) }"
PUSH_IN_PYTHON = """
from orders import OrderWorker
for number in range(20):
    OrderWorker.perform_async(number)
OrderWorker.perform_async(-1)
"""


def test_workers_of_the_page_share_one_queue(
    orders: Path, ruby, sidekiq: Gems, environment, redis_url: str, redis, eventually
) -> None:
    in_python = {**os.environ, **environment}
    in_ruby = {**in_python, "REDIS_URL": redis_url}
    # The folder is below /tmp, which another root has too.
    script = str(orders / "orders.rb")
    ruby_push = [*sidekiq.console()[:-1], "-r", script, "-e", PUSH_IN_RUBY]
    ruby_server = [*sidekiq.server(), "-r", script, "-q", "orders", "-c", "1", "-t", "2", "-e", "test"]
    python_server = [sys.executable, "-c", HURRIED, "-r", "orders", "-q", "orders", "-c", "1"]

    def runs() -> tuple[int, int]:
        ruby_log, python_log = (orders / "ruby.log").read_text(), (orders / "python.log").read_text()
        return ruby_log.count("ships order"), python_log.count('"message":"ships order"')

    def have_run(rounds: int) -> bool:
        return sum(runs()) >= 40 * rounds and redis.zcard("dead") == rounds

    with (
        started(ruby_server, in_ruby, orders / "ruby.log", "ready for orders"),
        started(python_server, in_python, orders / "python.log", "process.ready"),
    ):
        for rounds in itertools.count(1):
            subprocess.run(ruby_push, env=in_ruby, check=True)
            subprocess.run([sys.executable, "-c", PUSH_IN_PYTHON], env=in_python, check=True)
            eventually(partial(have_run, rounds), f"{rounds} times 40 runs")
            if all(runs()):  # both languages have taken a job
                break
    assert sum(runs()) == 40 * rounds
    assert not redis.zcard("retry")
