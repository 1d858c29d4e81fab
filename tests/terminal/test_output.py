"""Test the output of commands for hostile names, messages and payloads: no control character, no forged line."""

import json
import os
import re
import subprocess
import sys
import time
import unicodedata

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from framework.cli.main import jobs
from framework.cli.migrate_jobs import migrate_jobs
from framework.cli.retired import retired
from framework.cli.store import acl, acl_line
from framework.declare import registry
from framework.devtools.commands.route import route
from framework.errors import FrameworkError
from framework.features.concurrency.limit_state import LimitOverride, set_override
from framework.features.flags.flag import Flag, drop_flag, pause_flag
from framework.features.flags.redis_flags import set_flag
from framework.store.rights import ROLES
from framework.terminal.output import columns, reports_errors
from framework.text import MOST, visible, visible_json
from framework.wire import keys
from tests.harness import ROOT, encoded, hold

HOSTILE = (
    "Evil\x1b]52;c;ZXZpbA==\x07\x1b[2J\x1b[1A\r\nFORGED  why       nothing\u202e\u2066\u200b\u200f\u061c\x9b31m\u2028\u2029\x00\x7f"
    "\ufeff\U000e0041\xad"
)
JID = "f" * 24
FORBIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def control_characters(text):
    """Return the control and invisible characters of a text, except line ends."""
    return {char for char in text if unicodedata.category(char) in FORBIDDEN} - {"\n"}


def fill(redis):
    """Store the hostile name in every place that the commands read."""
    job = {
        "queue": HOSTILE,
        "error_class": HOSTILE,
        "error_message": HOSTILE,
        "deferred_by": HOSTILE,
        "aw_shard": HOSTILE,
    }
    data = encoded(HOSTILE, jid=JID, idempotency_key=keys.lock(HOSTILE), **job)
    name = f"queue:{HOSTILE}".encode("utf-8", "surrogatepass")
    redis.sadd(keys.QUEUES, HOSTILE)
    redis.lpush(name, data)
    redis.lpush("queue:default", data, encoded("NoopWorker", jid=HOSTILE))
    now = time.time()
    redis.zadd(
        keys.SCHEDULE, {encoded(HOSTILE, jid=JID, deferred=True, deferred_count=2, created_at=now - 9, **job): now + 60}
    )
    for place in (keys.RETRY, keys.DEAD, keys.INTERRUPTED):
        redis.zadd(place, {data: now - 5})
    hold(redis, data, f"{HOSTILE}:7:0123456789ab")
    redis.sadd(keys.PAUSED, HOSTILE)
    redis.hset(keys.lock(HOSTILE), mapping={"jid": JID, "class": HOSTILE, "since": now, "duplicates": 3})
    set_override(redis, HOSTILE, LimitOverride(3, now + 600, HOSTILE, HOSTILE))
    redis.zadd(f"{keys.limit(HOSTILE)}:running", {f"{HOSTILE} {JID}": now + 60})
    redis.zadd(f"{keys.limit(HOSTILE)}:waiting:{HOSTILE}", {b"[1]\n" + data: now - 3_600})
    redis.sadd(keys.LIMITS_WAITING, keys.limit(HOSTILE))
    redis.sadd(keys.PAUSED_CLASSES, HOSTILE)
    redis.zadd(keys.paused_jobs(HOSTILE), {b"[1]\n" + data: now - 3_600})
    for flag in (pause_flag(HOSTILE), drop_flag(HOSTILE), HOSTILE):
        set_flag(redis, Flag(flag, 50, HOSTILE, HOSTILE), 600)
    redis.hset(keys.COUNTERS, f'{HOSTILE}{{worker="{HOSTILE}"}}', 7)
    redis.hset(keys.RETIRED, HOSTILE, 7)
    redis.set(keys.status(JID), HOSTILE)
    info = json.dumps(
        {"queues": [HOSTILE], "weights": [{HOSTILE: 1}], "concurrency": 1, "identity": HOSTILE, "tag": HOSTILE}
    )
    redis.sadd(keys.PROCESSES, f"{HOSTILE}:7:0123456789ab")
    redis.hset(
        f"{HOSTILE}:7:0123456789ab", mapping={"info": info, "busy": 1, "beat": now, "quiet": "false", "concurrency": 1}
    )


LOOKS = [
    [jobs, "explain", JID],
    [jobs, "limits"],
    [jobs, "limits", "show", HOSTILE.replace("\x00", "")],
    [jobs, "flags"],
    [jobs, "locks"],
    [jobs, "locks", "show", HOSTILE.replace("\x00", "")],
    [jobs, "held"],
    [jobs, "paused"],
    [jobs, "deferred"],
    [jobs, "counters"],
    [jobs, "pause", HOSTILE.replace("\x00", ""), "--reason", "x", "--for", "2h"],
    [route, "--lint", "--live", "-r", "jobs"],
    [migrate_jobs, "queued", "--follow-rules", "--dry-run", "-r", "jobs"],
    [migrate_jobs, "queued", "--from", "default", "--to", "other", "--dry-run", "-r", "jobs"],
    [retired, "-r", "jobs"],
]


@pytest.fixture
def invoke(site, redis, monkeypatch):
    monkeypatch.syspath_prepend(str(site.folder))
    env = {"FRAMEWORK_CONFIG_DIR": str(site.folder / "config"), "PROOF_URL": site.url}

    def run(command, *words):
        return CliRunner().invoke(command, words, env=env)

    with registry.isolated():
        yield run


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: " ".join(map(ascii, look[1:]))[:30])
def test_commands_with_hostile_names_print_no_control(invoke, redis, look):
    fill(redis)
    done = invoke(*look)
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    printed = done.stdout + done.stderr
    assert control_characters(printed) == set(), printed
    assert "\r" not in printed
    assert not [line for line in printed.split("\n") if line.startswith(("FORGED", "[2J"))]


@pytest.mark.parametrize(
    "words", [["explain", JID], ["limits"], ["flags"], ["locks"], ["held"], ["paused"], ["deferred"]]
)
def test_json_of_hostile_names_is_escaped(invoke, redis, words):
    fill(redis)
    done = invoke(jobs, *words, "--json")
    assert control_characters(done.stdout) == set()
    assert HOSTILE in strings(json.loads(done.stdout))


def strings(value):
    """Return every text in a JSON value, joined."""
    if isinstance(value, dict):
        return " ".join(strings(one) for pair in value.items() for one in pair)
    if isinstance(value, list):
        return " ".join(map(strings, value))
    return value if isinstance(value, str) else ""


def test_explain_in_a_real_terminal_shows_escapes(site, redis):
    """Check the bytes that a process writes to a terminal."""
    fill(redis)
    done = site.run(str(ROOT / "scripts" / "jobs"), "explain", JID)
    assert done.returncode == 0
    assert control_characters(done.stdout + done.stderr) == set()
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{JID}: Evil\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x1b[1A\\r\\nFORGED  why")
    assert all(re.match(r"$|\w{24}: |  (where|since|due|holds|why|released) |its status", line) for line in lines), (
        lines
    )


def test_command_whose_reader_has_ended_prints_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "framework", "acl", "worker"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


TEXTS = st.text(
    st.characters() | st.sampled_from("\x1b\x9b\u202e\u2066\u200b\u061c\ud800\n\r\t\x7f語é\u0301\U0001f600\xad")
)


@given(TEXTS, st.integers(0, 50))
def test_visible_of_any_text_has_no_forbidden_character(text, most):
    shown = visible(text)
    assert shown.isprintable()
    assert not control_characters(shown)
    assert "\n" not in shown
    assert visible(shown) == shown
    if text.isprintable():
        assert shown == text
    assert len(visible(text, most)) <= 10 * most + 3


def test_visible_of_a_long_text_is_cut():
    assert visible("x" * 10**7) == "x" * MOST + "..."


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_visible_json_of_any_value_means_the_same(value):
    text = json.dumps(value, ensure_ascii=False)
    shown = visible_json(text)
    assert control_characters(shown) == set()
    assert json.loads(shown) == json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass"))


@given(st.lists(st.lists(TEXTS, min_size=3, max_size=3), min_size=1))
def test_columns_of_any_cells_are_one_line_each_and_aligned(rows):
    lines = list(columns([["A", "B", "C"], *rows, ["語語語語", "b", "c"], ["x", "b", "c"]]))
    assert len(lines) == len(rows) + 3
    assert not control_characters("".join(lines))
    assert not any("\n" in line for line in lines)
    # Four wide characters take as many columns as eight narrow ones: the next cell begins at the same place.
    wide, narrow = lines[-2], lines[-1]
    assert wide.index("b") + 4 == narrow.index("b")


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (FrameworkError(f"it says {HOSTILE}"), "it says Evil\\x1b]52"),
        (ValueError(HOSTILE), "ValueError: Evil\\x1b]52"),
        (click.UsageError(f"no {HOSTILE}"), "no Evil\\x1b]52"),
    ],
)
def test_command_error_prints_no_control_character(raised, shown):
    @click.command()
    @reports_errors
    def command():
        raise raised

    done = CliRunner().invoke(command)
    assert done.exit_code in (1, 2)
    assert shown in done.output
    assert control_characters(done.output) == set()


def test_explain_error_of_several_lines_keeps_them(site, redis, invoke):
    fill(redis)
    site.write("routing.yml", {"routing_rules": [["urgncy=high", "x"]]})
    done = invoke(jobs, "explain", JID)
    assert "problem in the configuration:\n  - " in done.stderr
    assert "\\n" not in done.stderr


def test_acl_for_an_unprintable_user_is_refused():
    for name in ("a b", "", "a\x1bb", "a\u200bb", "a\tb"):
        done = CliRunner().invoke(acl, ["producer", "--user", name])
        assert (done.exit_code, done.stdout) == (2, "")


def test_acl_prints_one_whole_line():
    for role in ROLES:
        done = CliRunner().invoke(acl, [role])
        assert done.stdout == acl_line(ROLES[role], role) + "\n"


def test_counters_with_hostile_names_are_valid_prometheus(invoke, redis):
    """One invalid line would make Prometheus reject the whole file."""
    fill(redis)
    redis.hset(keys.COUNTERS, 'ok{worker="' + "x" * (MOST + 1) + '"}', 3)
    redis.hset(keys.COUNTERS, 'hostile{worker="a\x1b[2J\u202e"}', 4)
    redis.hset(keys.COUNTERS, 'forged 1\nforged{worker="x"}', 5)
    lines = invoke(jobs, "counters").stdout.splitlines()
    label = r'[a-z_]+="(?:[^"\\]|\\[\\"n])*"'
    assert [
        line
        for line in lines
        if not re.fullmatch(rf"# TYPE \w+ \w+|# HELP \w+ .+|\w+\{{({label}(,{label})*)?\}} -?[0-9.]+", line)
    ] == []
    shard = 'application_worker_shard_{}_total{{shard="main",worker="{}"}} {}'
    assert shard.format("hostile", "a\\\\x1b[2J\\\\u202e", 4) in lines
    assert shard.format("ok", "x" * (MOST + 1), 3) in lines
    assert not [line for line in lines if "forged" in line]


def test_every_command_prints_through_the_terminal():
    """No other module in this folder writes to the terminal, so no call can skip the escaping."""
    writes = re.compile(r"\bclick\.(?:secho|echo)\(|\bprint\(|sys\.std(?:out|err)\.write")
    found = [
        f"{path.name}: {line.strip()}"
        for pattern in ("cli/**/*.py", "terminal/*.py", "features/*/commands.py")
        for path in sorted((ROOT / "framework").glob(pattern))
        for line in path.read_text().splitlines()
        if writes.search(line) and path.name != "output.py"
    ]
    assert found == []
