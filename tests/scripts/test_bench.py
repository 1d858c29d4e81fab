"""Test scripts/bench: its statistics, meters, checks and pictures by themselves, and a very small real campaign."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = ROOT / "scripts"
BENCH = SCRIPTS / "bench"
JOBS = ROOT / "tests" / "bench" / "jobs"
PATIENCE_S = 90.0
SVG = "{http://www.w3.org/2000/svg}"

needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="redis-server is not installed")


# --- statistics -----------------------------------------------------------------------------------------------------


def test_series_median_and_percentile_are_exact():
    from tests.bench.figures import Series, percentile

    series = Series((3.0, 1.0, 10.0))
    assert (series.median, series.low, series.high) == (3.0, 1.0, 10.0)
    hundred = [float(number) for number in range(100, 0, -1)]
    assert [percentile(hundred, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]
    assert percentile([3.0, 2.0, 1.0], 0.5) == 2.0
    assert percentile([7.0], 0.99) == 7.0
    for empty in (lambda: Series(()), lambda: percentile([], 0.5)):
        with pytest.raises(ValueError, match="no"):
            empty()


@pytest.mark.parametrize(
    ("value", "text"), [(123456.7, "123,457"), (100, "100"), (12.345, "12.3"), (0.5678, "0.57"), (0, "0")]
)
def test_figures_have_significant_digits(value: float, text: str):
    from tests.bench.figures import shown

    assert shown(value) == text


def test_throughput_excludes_the_first_job_without_its_time():
    from tests.bench.drains import rate
    from tests.bench.meters import Reading

    reading = Reading(count=101, first=10.0, last=12.0)
    assert rate(reading, lasting=False) == 50.0  # 100 intervals between 101 ends
    assert rate(reading, lasting=True) == 50.5  # 101 jobs from the first start to the last end


def test_waits_count_only_while_a_slot_is_free():
    from tests.bench.framework_only import waits_with_free_slots

    runs = [
        (0.0, 1.0, 5.0),  # all free: waits 1 while slots are free
        (0.0, 2.0, 4.0),  # one of two is busy from 1 on: waits 2
        (2.5, 4.0, 6.0),  # both busy until 4: waits 0
        (2.0, 5.5, 6.0),  # pushed into full slots; from 5 to 5.5 one is free
    ]
    assert waits_with_free_slots(runs, slots=2) == pytest.approx([1.0, 2.0, 0.0, 0.5])
    assert waits_with_free_slots(runs, slots=3) == pytest.approx([1.0, 2.0, 1.5, 3.5])


def test_cost_between_two_counts_of_a_drain():
    from tests.bench.errors import RunFailed
    from tests.bench.framework_only import _cost_us
    from tests.bench.workload_run import Sample

    samples = [Sample(at, count, 0.0, 0.0) for at, count in [(0.0, 10), (1.0, 1010), (3.0, 2010), (4.0, 3010)]]
    assert _cost_us(samples, 0, 1000) == pytest.approx(1000)
    assert _cost_us(samples, 1000, 2000) == pytest.approx(2000)
    with pytest.raises(RunFailed):
        _cost_us(samples, 3000, 3010)


def test_pinned_cores_of_redis_and_worker_differ():
    from tests.bench.machine import Cores

    pinned = Cores.of([4, 7, 9], pinned=True)
    assert (pinned.store, pinned.worker, pinned.producer) == ({4}, {7}, {4})
    free = Cores.of([4, 7], pinned=False)
    assert free.store == free.worker == free.producer == {4, 7}


def test_guideline_mix_has_the_exact_shares():
    from tests.bench.guideline import NAMESPACES, planned

    jobs = planned(2_000, large=True)
    policies = Counter(name for _, _, names, _ in jobs for name in names)
    assert policies == {"Idempotent": 1_400, "Limited": 1_200, "Tracked": 600}
    assert Counter(tuple(names) for _, _, names, _ in jobs)["Idempotent", "Limited", "Tracked"] == 2_000 * 0.126
    assert Counter(namespace for _, namespace, _, _ in jobs) == {
        namespace: 200 * weight for namespace, weight in NAMESPACES.items()
    }
    assert sum(large for *_, large in jobs) == 100
    assert {namespace for _, namespace, _, large in jobs if large} == set(NAMESPACES)
    assert [number for number, *_ in jobs] == list(range(2_000))
    assert not any(large for *_, large in planned(2_000, large=False))


def test_large_argument_of_the_mix_has_about_150_kb():
    from tests.bench.guideline import records

    assert 135_000 < len(json.dumps(records(), separators=(",", ":"))) < 165_000


# --- meters ---------------------------------------------------------------------------------------------------------

HITS = """
import sys, threading, meter
def work():
    for _ in range(5000):
        meter.begin()
        meter.hit()
threads = [threading.Thread(target=work) for _ in range(8)]
sys.setswitchinterval(1e-6)
[thread.start() for thread in threads]
[thread.join() for thread in threads]
meter.note(1.5, 2.5)
"""
RUBY_HITS = 'require_relative "meter"; Meter.begin; 3.times { Meter.hit }; Meter.note(4.5); Meter.note(5.5)'


def test_meters_count_every_job_of_every_thread_and_process(tmp_path: Path):
    from tests.bench.meters import Meters

    meters = Meters(tmp_path / "meters")
    assert meters.read().count == 0
    environment = {**os.environ, "BENCH_METERS": str(meters.folder), "PYTHONPATH": str(JOBS)}
    before = time.monotonic()
    for _ in range(2):
        subprocess.run([sys.executable, "-c", HITS], env=environment, check=True)
    reading = meters.read()
    assert reading.count == 2 * 8 * 5000
    assert before < reading.first < reading.last < time.monotonic()
    assert meters.notes() == [[1.5, 2.5]] * 2


@pytest.mark.skipif(not shutil.which("ruby"), reason="Ruby is not installed")
def test_ruby_meter_has_the_same_cells(tmp_path: Path):
    from tests.bench.meters import Meters

    meters = Meters(tmp_path / "meters")
    environment = {**os.environ, "BENCH_METERS": str(meters.folder)}
    before = time.monotonic()
    subprocess.run(["ruby", "-I", str(JOBS), "-e", RUBY_HITS.replace("_relative", "")], env=environment, check=True)
    reading = meters.read()
    assert reading.count == 3
    assert before < reading.first < reading.last < time.monotonic()
    assert meters.notes() == [[4.5, 5.5]]


# --- conditions of a figure -----------------------------------------------------------------------------------------


def lines(tmp_path: Path, *entries: tuple[str, str]) -> Path:
    log = tmp_path / "worker.log"
    written: list[dict[str, str]] = [{"event_name": "process.ready"}]
    written += [{"job_status": status, "jid": jid} for status, jid in entries]
    log.write_text("".join(json.dumps(each) + "\n" for each in written))
    return log


def test_log_count_accepts_complete_lines(tmp_path: Path):
    from tests.bench.drains import check_lines

    log = lines(tmp_path, ("start", "a"), ("start", "b"), ("done", "b"), ("done", "a"))
    check_lines(log, 2)
    assert not log.exists()


def test_log_count_reads_the_lines_of_sidekiq(tmp_path: Path):
    from tests.bench.drains import check_lines

    log = tmp_path / "worker.log"
    written = [{"msg": "Booting"}] + [{"msg": status, "ctx": {"jid": "a"}} for status in ("start", "done")]
    log.write_text("".join(json.dumps(each) + "\n" for each in written))
    check_lines(log, 1)
    assert not log.exists()


@pytest.mark.parametrize(
    "entries",
    [
        [("start", "a"), ("start", "b"), ("done", "a")],
        [("start", "a"), ("done", "a"), ("done", "b")],
        [("start", "a"), ("start", "b"), ("done", "a"), ("done", "a")],
        [("start", "a"), ("start", "b"), ("start", "b"), ("done", "a"), ("done", "b")],
        [("start", "a"), ("start", "b"), ("done", "a"), ("done", "c")],
        [("start", "a"), ("start", "b"), ("start", "b"), ("done", "a"), ("done", "b"), ("done", "b")],
    ],
    ids=["no done", "no start", "done twice", "start twice", "another job", "ran twice"],
)
def test_log_count_refuses_missing_and_double_lines(tmp_path: Path, entries: list[tuple[str, str]]):
    from tests.bench.drains import check_lines
    from tests.bench.errors import RunFailed

    with pytest.raises(RunFailed, match="lines"):
        check_lines(lines(tmp_path, *entries), 2)


def test_worker_session_leaves_no_process(tmp_path: Path):
    from tests.bench.machine import available_cores, session_members
    from tests.bench.process import BenchProcess

    command = ["sh", "-c", "sleep 100 & echo here; wait"]
    cores = frozenset(available_cores())
    with BenchProcess(command, env=dict(os.environ), cwd=tmp_path, log=tmp_path / "child.log", cores=cores) as child:
        until(lambda: "here" in child.log.read_text())
        leader = min(child.pids)
        assert len(child.pids) == 2
    until(lambda: not session_members(leader))


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@needs_redis
def test_store_restores_the_queue_before_each_repetition(tmp_path: Path):
    from redis import Redis

    from tests.bench.machine import available_cores
    from tests.bench.store import JOB_DB, Store

    with (
        Store(tmp_path / "redis", cores=frozenset(available_cores())) as store,
        Redis(port=store.port) as queue,
        Redis(port=store.port, db=JOB_DB) as written,
    ):
        queue.rpush("queue:default", *range(5))
        queue.hset("job:1", "state", "new")
        store.keep()
        for _ in range(2):
            queue.lpop("queue:default", 3)
            queue.hset("job:1", "state", "done")
            queue.set("left behind", 1)
            written.incr("bench:incr")
            store.restore()
            assert queue.lrange("queue:default", 0, -1) == [b"0", b"1", b"2", b"3", b"4"]
            assert queue.hget("job:1", "state") == b"new"
            assert queue.dbsize() == 2
            assert written.dbsize() == 0


@needs_redis
def test_command_count_includes_scripts_not_the_tool(tmp_path: Path):
    from redis import Redis

    from tests.bench.machine import available_cores
    from tests.bench.store import Store

    with Store(tmp_path / "redis", cores=frozenset(available_cores())) as store, Redis(port=store.port) as queue:
        queue.ping()
        before = store.commands()
        queue.eval("redis.call('INCR', KEYS[1]) redis.call('INCR', KEYS[1])", 1, "count")
        after = store.commands()
        after.subtract(before)
        assert {name: count for name, count in after.items() if count} == {"eval": 1, "incr": 2}


def test_proxy_keeps_the_order(tmp_path: Path):
    from tests.bench.store import free_port

    port, text = free_port(), bytes(range(256)) * 8000
    with socket.create_server(("127.0.0.1", 0)) as target:
        command = [sys.executable, str(JOBS / "proxy.py"), str(port), str(target.getsockname()[1]), "4"]
        with subprocess.Popen(command) as proxy:
            try:
                near = connected(port)
                far, _ = target.accept()
                with near, far:
                    far.settimeout(PATIENCE_S)
                    near.sendall(text)
                    near.shutdown(socket.SHUT_WR)
                    assert far.makefile("rb").read() == text
            finally:
                proxy.terminate()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# --- use of the figures ---------------------------------------------------------------------------------------------


def found(**rates: float) -> Any:
    """Return results of the no-op drain, pinned: each contestant's rate in three repetitions around the given one."""
    from tests.bench.campaign import PINNED, Result, Results
    from tests.bench.figures import Series

    return Results(
        [
            Result("noop", name.replace("_", "-"), PINNED, {"rate": Series((rate * 0.9, rate, rate * 1.2))})
            for name, rate in rates.items()
        ]
    )


def test_targets_compare_medians_and_name_unknown_ones():
    from tests.bench.targets import TARGETS, unmeasured, verdicts

    results = found(framework=50_000, framework_lines=24_000, sidekiq=10_000, dramatiq=3_000, taskiq_stream=5_000)
    seen = {each.says: (each.goal, each.measured, each.met) for each in verdicts(results)}
    assert seen == {
        "drain, no job lines, against Sidekiq": (">= 5x", "5.00x", True),
        "drain, two job lines in a file, against Sidekiq": (">= 2.5x", "2.40x", False),
        "drain, against the best Python peer that loses nothing": (">= 8x", "10.0x", True),
    }
    assert len(unmeasured(results)) == len(TARGETS) - 3


def test_target_at_most_is_met_below():
    from tests.bench.campaign import UNPINNED, Result, Results
    from tests.bench.figures import Series
    from tests.bench.targets import verdicts

    def judged(percent: float) -> list[bool]:
        result = Result("idle", "framework", UNPINNED, {"cpu_percent": Series((percent,))})
        return [each.met for each in verdicts(Results([result]))]

    assert judged(0.19) == [True]
    assert judged(0.21) == [False]


def test_chart_is_to_scale():
    from tests.bench.chart import drawn

    picture = ET.fromstring(drawn(found(framework=50_000, sidekiq=10_000, bare=20_000)))
    widths = {
        bar.get("class"): float(str(bar.get("width")))
        for bar in picture.iter(f"{SVG}rect")
        if bar.get("class") != "ground"
    }
    assert widths["framework pinned"] == pytest.approx(5 * widths["reference pinned"], rel=0.01)
    assert widths["floor pinned"] == pytest.approx(2 * widths["reference pinned"], rel=0.01)
    left = min(float(str(bar.get("x"))) for bar in picture.iter(f"{SVG}rect") if bar.get("x"))
    first = next(str(line.get("d")) for line in picture.iter(f"{SVG}path") if line.get("class") == "range")
    low, _, high = map(float, re.split("[ H]", first.removeprefix("M")))
    assert (high - left) / widths["framework pinned"] == pytest.approx(1.2, rel=0.01)
    assert (low - left) / widths["framework pinned"] == pytest.approx(0.9, rel=0.01)
    words = [text.text for text in picture.iter(f"{SVG}text")]
    assert [word for word in words if word in ("framework", "sidekiq", "bare")] == ["framework", "bare", "sidekiq"]
    assert "50,000 · 5.00x sidekiq" in words
    assert "10,000" in words
    right = max(float(str(bar.get("x", 0))) + float(str(bar.get("width"))) for bar in picture.iter(f"{SVG}rect"))
    assert right <= float(str(picture.get("width")))


def test_chart_with_an_outlier_shows_the_others():
    from tests.bench.campaign import PINNED, Result, Results
    from tests.bench.chart import drawn
    from tests.bench.figures import Series

    waits = {"framework": 0.5, "sidekiq": 1.0, "huey": 2.0, "arq": 250.0, "bare": -0.1}
    results = Results([Result("latency", name, PINNED, {"p50": Series((wait,))}) for name, wait in waits.items()])
    picture = ET.fromstring(drawn(results))
    widths = sorted(float(str(bar.get("width"))) for bar in picture.iter(f"{SVG}rect") if bar.get("class") != "ground")
    assert widths[1:] == pytest.approx([55, 110, 220, 440])
    assert widths[0] > 0
    assert len([line for line in picture.iter(f"{SVG}path") if line.get("class") == "cut"]) == 1


@pytest.mark.parametrize(
    ("symbol", "part"),
    [
        ("lua_pushlstring", "Lua"),
        ("luaCallFunction", "calls of scripts and commands"),
        ("call", "calls of scripts and commands"),
        ("callReplyParse", "commands and data"),
        ("addReplyBulk", "connections and protocol"),
        ("readQueryFromClient", "connections and protocol"),
        ("zmalloc", "memory"),
        ("zslInsert", "commands and data"),
        ("lpushCommand", "commands and data"),
        ("aeProcessEvents", "connections and protocol"),
    ],
)
def test_function_of_redis_belongs_to_one_part(symbol: str, part: str):
    from tests.bench.redis_time import part_of

    assert part_of(symbol) == part


def test_picture_of_the_time_of_redis_is_to_scale():
    from tests.bench.redis_time import LUA, KindTime, drawn, table

    found = {"plain": KindTime(4.0, {LUA: 4.0}, {"fetch": 3.5}), "limited": KindTime(8.0, {LUA: 8.0}, {"admit": 5.0})}
    picture = ET.fromstring(drawn(found, "7.0"))
    widths = [
        float(bar[1].attrib["width"]) for bar in picture.iter(f"{SVG}g") if (bar[0].text or "").startswith(f"{LUA}: ")
    ]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.1)
    assert {"fetch 3.5", "admit 5.0"} <= {one.text for one in picture.iter(f"{SVG}text")}
    assert "| plain | 0.0 | 0.0 | 0.0 | 4.0 | 0.0 | 0.0 | 4.0 us | `fetch` 3.5 |" in list(table(found))


def test_table_has_median_range_and_multiple():
    from tests.bench.table import printed

    rows = [line.split() for line in printed(found(framework=50_000, sidekiq=10_000)).splitlines()]
    assert rows[2:] == [
        ["framework", "50,000", "45,000-60,000", "5.00"],
        ["sidekiq", "10,000", "9,000-12,000", "1.00"],
    ]


# --- real runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Run the command with its own var directory; afterwards none of its processes may be left."""
    environment = os.environ | {"FRAMEWORK_VAR_DIR": str(tmp_path / "var")}

    def start(*arguments: str, **more: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(BENCH), *arguments], env=environment | more, cwd="/", text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    yield start
    assert not [entry.name for entry in Path("/proc").iterdir() if _works_in(entry, tmp_path)]


def _works_in(process: Path, folder: Path) -> bool:
    try:
        return process.name.isdigit() and str((process / "cwd").readlink()).startswith(str(folder))
    except OSError:
        return False


@pytest.mark.campaign
@needs_redis
def test_campaign_of_one_workload_reports(bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path):
    out = tmp_path / "out"
    contestants = ["framework", "framework-lines", "bare"]
    running = bench(
        "--quick",
        "--no-pin",
        "--jobs",
        "3000",
        "--out",
        str(out),
        "--workload",
        "noop",
        "push",
        "--contestant",
        *contestants,
    )
    output, progress = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, progress
    assert all(name in output for name in contestants)
    assert "noop unpinned 1/1 framework:" in progress

    data = json.loads((out / "results.json").read_text())
    assert not data["troubles"]
    medians = {(each["workload"], each["contestant"]): each["figures"]["rate"]["median"] for each in data["results"]}
    assert sorted(medians) == sorted(
        [("noop", name) for name in contestants] + [("push", name) for name in ("framework", "bare")]
    )
    assert all(rate > 0 for rate in medians.values())
    jobs = {
        each["contestant"]: each["figures"]["jobs"]["median"] for each in data["results"] if each["workload"] == "noop"
    }
    assert jobs["framework"] == 3000
    assert [each["says"] for each in data["targets"]] == ["push one, against a bare LPUSH"]
    assert data["facts"]["redis"].endswith("no persistence")

    picture = (out / "chart.svg").read_text()
    assert len(list(ET.fromstring(picture).iter(f"{SVG}rect"))) == 1 + len(medians)
    page = (out / "report.html").read_text()
    assert picture in page
    assert "push one, against a bare LPUSH" in page
    assert not list((tmp_path / "var" / "bench" / "runs").glob("*/*/redis"))


@pytest.mark.campaign
@needs_redis
@pytest.mark.skipif(not shutil.which("sidekiq"), reason="Sidekiq is not installed")
def test_guideline_mix_runs_with_lines_of_both(bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path):
    out = tmp_path / "out"
    contestants = ["framework-lines", "sidekiq-lines"]
    arguments = ("--quick", "--no-pin", "--out", str(out), "--workload", "guideline", "guideline_small")
    running = bench(*arguments, "--contestant", *contestants)
    output, progress = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, progress
    assert "x sidekiq-lines" in output
    data = json.loads((out / "results.json").read_text())
    assert not data["troubles"]
    assert len(data["results"]) == 4
    # A drain of a fast machine may end before two samples of the processor time.
    assert all(each["figures"]["rate"]["median"] > 0 for each in data["results"])
    assert {each["says"].split(":")[0] for each in data["targets"]} == {"guideline mix"}


@pytest.mark.campaign
@needs_redis
def test_slow_network_is_between_worker_and_redis(bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path):
    out = tmp_path / "out"
    arguments = (
        "--quick",
        "--no-pin",
        "--workload",
        "noop",
        "--contestant",
        "bare",
        "--jobs",
        "1000",
        "--out",
        str(out),
    )
    running = bench(*arguments, "--delay", "20")
    _, progress = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, progress
    data = json.loads((out / "results.json").read_text())
    assert (
        data["results"][0]["figures"]["rate"]["median"] <= 50
    )  # one job per round trip is the upper bound for any framework
    assert data["facts"]["round trip added"] == "20 ms"


@needs_redis
def test_interrupted_campaign_reports_its_results(bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path):
    out = tmp_path / "out"
    running = bench(
        "--no-pin", "--workload", "noop", "latency", "--contestant", "bare", "--jobs", "3000", "--out", str(out)
    )
    assert running.stderr
    assert "noop unpinned 1/3 bare" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    data = json.loads((out / "results.json").read_text())
    assert data["results"][0]["contestant"] == "bare"
    assert "stopped" in data["facts"]["run"]


def test_campaign_without_redis_names_the_remedy(bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path):
    running = bench("--workload", "noop", "--contestant", "bare", "--no-pin", PATH=str(tmp_path))
    output, progress = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1
    assert not output
    assert "redis-server is not installed" in progress


def test_contestant_not_installable_is_skipped_with_a_line(
    bench: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
):
    for name in ("redis-server", "git"):
        if place := shutil.which(name):
            (tmp_path / name).symlink_to(place)
    running = bench("--quick", "--workload", "bulk", "--contestant", "sidekiq", "bare", "--no-pin", PATH=str(tmp_path))
    output, progress = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, progress
    assert "bare" in output
    assert "sidekiq is skipped" in progress
    assert "apt-get install" in progress


def test_list_names_contestants_and_workloads(bench: Callable[..., "subprocess.Popen[str]"]):
    from tests.bench import contestants, workloads

    output, _ = bench("--list").communicate(timeout=PATIENCE_S)
    first_words = [line.split()[0] for line in output.splitlines() if line]
    assert {*contestants.BY_NAME, *workloads.BY_NAME} <= set(first_words)


def test_lock_files_pin_by_hash():
    locks = sorted((ROOT / "tests" / "bench" / "locks").glob("*.lock"))
    assert locks
    for lock in locks:
        entries = [line for line in lock.read_text().replace("\\\n", " ").splitlines() if line.strip()]
        assert not [line for line in entries if "==" not in line or "--hash=sha256:" not in line]
