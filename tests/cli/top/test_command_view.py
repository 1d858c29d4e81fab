"""Test the live view in a real terminal, with a real worker process: see, filter, act, resize, end. The terminal is restored."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time

import pytest

from framework.admin.port import Access, opener
from framework.all_settings import load
from framework.cli.top.facts import ShardReader
from framework.shard.shards import Shards
from framework.wire import keys
from tests.admin.conftest import SILENT_URL
from tests.harness import ROOT, encoded, enqueue, opened, until

COMMAND = str(ROOT / "scripts" / "top")
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[0m\x1b[?25h\x1b[?1049l"
_ESCAPES = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")


class Terminal:
    """A pseudo terminal with ``top`` in the foreground."""

    def __init__(self, site, *options, role="operator"):
        self.master, self._slave = pty.openpty()
        self.resize(100, 30)
        self.before = termios.tcgetattr(self._slave)
        self.output = ""
        # The pseudo terminal becomes the one whose Ctrl-C this session receives.
        code = (
            "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from framework.cli.main import main; main()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "top", "--every", "0.2", *options],
            **dict.fromkeys(("stdin", "stdout", "stderr"), self._slave),
            cwd=site.folder,
            start_new_session=True,
            env={**site.environment(role), "TERM": "xterm", "PYTHONPATH": str(ROOT)},
        )

    def resize(self, columns, lines):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, text):
        os.write(self.master, text.encode())

    def read(self):
        while select.select([self.master], [], [], 0)[0]:
            self.output += os.read(self.master, 65_536).decode()

    @property
    def lines(self):
        """The lines of the last whole frame."""
        self.read()
        whole = self.output.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        return [line.rstrip() for line in _ESCAPES.sub("", whole).split("\r\n")]

    def until(self, pattern):
        return until(lambda: re.search(pattern, "\n".join(self.lines), re.MULTILINE), pattern, 60)

    def end(self):
        """Return the status of the ended command; the terminal is as it was."""
        until(lambda: (self.read(), self.process.poll() is not None)[1], "the end of top")
        self.read()
        assert self.output.endswith(LEAVE), self.output[-300:]
        assert termios.tcgetattr(self._slave) == self.before
        return self.process.returncode

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


@pytest.fixture
def terminal(site):
    started = []

    def start(*options, role="operator"):
        started.append(Terminal(site, *options, role=role))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_view_shows_a_real_process_and_acts_on_what_is_selected(site, redis, terminal):
    enqueue(redis, "LongWorker", args=["one"], jid="runs")
    enqueue(redis, "Mail", jid="m1", queue="mailers")
    redis.zadd(keys.DEAD, {encoded("NoopWorker", jid="dead1", error_class="IOError", error_message="off"): time.time()})
    worker = site.hurried_worker("-q", "default", "-c", "1", "-t", "0").ready()
    view = terminal()
    view.until(rf"^main +{worker.identity} +\S+ +running +1/1")
    view.until(r"^main +runs +LongWorker +default")
    view.until(r"^main +mailers +1 .* no process$")
    view.press("/mailers\r")
    view.until(r"^queues \(1 of 2\)")
    view.press("\x1b")
    view.until(r"^queues \(2\)")
    view.press("/mailers\r")
    view.until(r"^queues \(1 of 2\)")
    view.press("p")
    view.until(r"^Pause mailers on main\? y: yes")
    view.press("y")
    view.until(r"mailers is paused$")
    assert redis.smembers(keys.PAUSED) == {b"mailers"}
    view.press("\x1b8")
    view.until(r"^main +dead1 +NoopWorker +default .* IOError: off")
    view.press("r")
    view.press("y")
    view.until(r"dead1 is moved to its queue")
    assert redis.zcard(keys.DEAD) == 0
    view.press("3u")
    view.press("y")
    view.until(r"is asked to become quiet")
    view.until(rf"^main +{worker.identity} +\S+ +quiet")
    view.resize(60, 12)
    until(lambda: len(view.lines) == 12, "a frame of the new size")
    view.press("q")
    assert view.end() == 0


def test_view_shows_classes_and_their_details(site, redis, terminal):
    """A real process runs and fails jobs; others wait and are held. Read-only rights suffice."""
    for number in range(3):
        enqueue(redis, "Absent", jid=f"a{number}", queue="idle")
    redis.zadd(keys.paused_jobs("Held"), {b'["mail"]\n' + encoded("Held", jid="h1"): time.time() - 90})
    redis.sadd(keys.PAUSED_CLASSES, "Held")
    minute = keys.metrics(8, time.gmtime())[0][0]
    redis.hset(minute, mapping={"Mail|p": 6, "Mail|f": 2, "Mail|ms": 1_000, "odd": 1})
    view = terminal("--view", "classes", role="read-only")
    view.until(r"^main +Absent +0\.0 +- +0 +3 +0 +-$")
    view.until(r"^main +Held +0\.0 +- +0 +0 +1 +-$")
    view.until(r"^main +Mail +\d\.\d +0\.25 s +2 +0 +0 +-$")
    view.press("/held\r\r")
    view.until(r"^Held on main$")
    view.until(r"^  held by +its pause: 1 job, the oldest for 1 min")
    view.press("\x1b")
    view.until(r"^classes \(1 of 3\)")
    view.press("q")
    assert view.end() == 0


def test_view_goes_on_without_a_shard_and_ctrl_c_ends_it(site, redis, terminal):
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": SILENT_URL}}})
    enqueue(redis, "Mail", jid="m1", queue="mailers")
    view = terminal("--read-only", role="read-only")
    view.until(r"^second: no answer since .*Z: shard 'second'")
    view.until(r"^main +mailers +1 ")
    view.press("p")
    view.until(r"pause is refused: this view was started with --read-only")
    view.press("\x03")
    assert view.end() == 0
    assert not redis.exists(keys.PAUSED)


def test_stopped_view_gives_the_terminal_back_and_goes_on(site, redis, terminal):
    view = terminal("--view", "queues")
    view.until(r"^queues \(0\)")
    # Linux does not stop a process that no shell controls: it gives the terminal back, and takes it again at once.
    view.process.send_signal(signal.SIGTSTP)
    until(lambda: (view.read(), LEAVE + ENTER in view.output)[1], "the terminal is given back")
    view.until(r"^queues \(0\)")
    view.process.send_signal(signal.SIGTERM)
    assert view.end() == 128 + signal.SIGTERM


def test_once_prints_one_frame_and_its_status(site, redis):
    enqueue(redis, "Mail", jid="m1", queue="mailers")
    enqueue(redis, "Mail", jid="m2", queue="other")
    done = site.run(COMMAND, "--once", "--filter", "MAILERS", role="read-only")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[2] == "enqueued 2  scheduled 0  retry 0  dead 0  interrupted 0  held 0"
    assert lines[4] == "queues (1 of 2)"
    assert lines[6].split()[:3] == ["main", "mailers", "1"]
    site.write("redis.yml", {"shards": {"main": {"url": site.url}, "second": {"url": SILENT_URL}}})
    done = site.run(COMMAND, "--once", "--view", "queues", role="operator")
    assert done.returncode == 1
    assert done.stderr.startswith("second: no answer since ")
    assert "queues (2)" in done.stdout


def test_without_a_terminal_the_live_view_names_once(site, redis):
    done = site.run(COMMAND, role="operator")
    assert (done.returncode, "give --once to print one frame" in done.stderr) == (2, True)
    assert "(did you mean 'dead'?)" in site.run(COMMAND, "--view", "deda", role="operator").stderr


def test_reader_ends_with_the_view(redis, redis_url):
    read, settings, shards = threading.Event(), load({}), Shards({"main": opened(redis_url)})
    reader = ShardReader("main", 600.0, read.set)
    with opener.override(lambda: Access(shards, settings)):
        reader.start()
        assert read.wait(30)
        reader.end()
        reader.wait(30)
    assert "read main" not in [thread.name for thread in threading.enumerate()]
    shards.close()


def test_reader_keeps_the_last_facts_during_an_outage(redis, redis_url):
    enqueue(redis, "Mail", jid="m1", queue="mailers")
    reader, settings = ShardReader("main", 1.0, lambda: None), load({})
    for url, failure in ((redis_url, ""), (SILENT_URL, "its figures are older: shard 'main'"), (redis_url, "")):
        shards = Shards({"main": opened(url)})
        with opener.override(lambda shards=shards: Access(shards, settings)):
            reader.read()
        shards.close()
        assert failure in reader.reading.failure
        assert bool(failure) == bool(reader.reading.failure)
        assert [queue.name for queue in reader.reading.facts.queues] == ["mailers"]


def test_one_reading_costs_a_bounded_number_of_commands(redis, redis_url):
    for number in range(10):
        enqueue(redis, "Mail", jid=f"m{number}", queue=f"q{number}")
    shards, settings = Shards({"main": opened(redis_url)}), load({})
    with opener.override(lambda: Access(shards, settings)):
        reader = ShardReader("main", 1.0, lambda: None)
        reader.read()
        before = redis.info("stats")["total_commands_processed"]
        reader.read()
        spent = redis.info("stats")["total_commands_processed"] - before - 1
    shards.close()
    # Those inside of scripts count too.
    assert spent <= 30 + 3 * 10, spent
