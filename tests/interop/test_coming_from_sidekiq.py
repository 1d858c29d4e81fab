"""Run the two workers of the page on coming from Sidekiq, one in Ruby and one in Python, on one queue."""

import os
import subprocess
import sys
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


def test_workers_of_the_page_share_one_queue(
    orders: Path, ruby, sidekiq: Gems, environment, redis_url: str, redis, eventually
) -> None:
    environment = {**os.environ, **environment}
    as_ruby = {**environment, "REDIS_URL": redis_url}
    ruby_push = [*sidekiq.console()[:-1], "-r", str(orders / "orders.rb"), "-e"]
    python_push = "from orders import OrderWorker\nfor number in range(20): OrderWorker.perform_async(number)\nOrderWorker.perform_async(-1)"
    ruby_server = [*sidekiq.server(), "-r", str(orders / "orders.rb"), "-q", "orders", "-c", "1", "-t", "2", "-e", "test"]
    python_server = [sys.executable, "-c", HURRIED, "-r", "orders", "-q", "orders", "-c", "1"]
    ran = {"ruby": 0, "python": 0}
    pushed = 0
    with (
        started(ruby_server, as_ruby, orders / "ruby.log", "ready for orders") as in_ruby,
        started(python_server, environment, orders / "python.log", "process.ready") as in_python,
    ):
        while not all(ran.values()):
            subprocess.run([*ruby_push, "20.times { |n| OrderWorker.perform_async(n, true) }"], env=as_ruby, check=True)
            subprocess.run([sys.executable, "-c", python_push], env=environment, check=True)
            pushed += 40
            eventually(lambda: redis.llen("queue:orders") == 0 and redis.zcard("dead") == pushed // 40, "an empty queue")

            def all_ran() -> bool:
                ran["ruby"] = in_ruby.output.read_text().count("ships order")
                ran["python"] = in_python.output.read_text().count('"message":"ships order"')
                return sum(ran.values()) >= pushed

            eventually(all_ran, f"{pushed} runs")
    assert sum(ran.values()) == pushed
    assert redis.zcard("retry") == 0
