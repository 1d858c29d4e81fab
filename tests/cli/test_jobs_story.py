"""Test jobs story: the tree of jobs from log lines of several processes, and input of any form."""

import gzip
import json

import pytest
from click.testing import CliRunner

from framework.cli.main import jobs as command
from framework.cli.story import chain as chains
from framework.terminal.log_files import facts_of
from tests.tables import each_row

ROOT = {"class": "Order", "jid": "root", "correlation_id": "c1", "worker_id": "a:1", "meta.caller_id": "POST /orders"}


def at(seconds):
    return f"2026-11-29T10:00:{seconds:06.3f}Z"


def line(seconds, status, **fields):
    return json.dumps({"time": at(seconds), "job_status": status, "correlation_id": "c1", **fields})


def run(seconds, length, **fields):
    """Return the lines of one run of a job, which was pushed 10 ms before."""
    fields = {"created_at": at(seconds - 0.01), "scheduling_latency_s": 0.01, **fields}
    return [line(seconds, "start", **fields), line(seconds + length, "done", duration_s=length, **fields)]


def child(name, jid, **fields):
    return {"class": name, "jid": jid, "meta.caller_id": "Order", "worker_id": "b:2", **fields}


@pytest.fixture
def story(tmp_path, monkeypatch):
    """Return a function that writes the lines of each process to a file, and runs the command on them."""
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))

    def call(name, *processes, status=0, words=(), lines=None):
        paths = []
        for number, written in enumerate(processes):
            paths.append(tmp_path / f"{number}.log")
            paths[-1].write_text("".join(f"{one}\n" for one in written))
        ended = CliRunner().invoke(command, ["story", name, *map(str, paths), *words], input=lines)
        assert ended.exit_code == status, ended.output
        return json.loads(ended.stdout) if "--json" in words else ended.output

    return call


def shown(text):
    """Return the lines below the heading, without the times."""
    return [one.replace(" ", "", 0).rstrip() for one in text.splitlines()[3:]]


CHAIN = [
    run(1, 2, **ROOT),
    [
        *run(2.5, 0.5, **child("Mail", "mail", created_at=at(1.5))),
        line(5, "start", **child("Index", "index", created_at=at(2), scheduling_latency_s=3)),
        line(
            *(5.2, "fail"),
            **child("Index", "index", created_at=at(2), duration_s=0.2, retry_in_s=1.5),
            **{"exception.class": "OSError", "exception.message": "away"},
        ),
        *run(7, 0.1, **child("Index", "index", created_at=at(2))),
        line(2.1, "deduplicated", **{**child("Mail", "second"), "worker_id": "a:1", "duplicate-of": "mail"}),
        line(2.6, "concurrency_limit", **child("Row", "row", created_at=at(1.6), concurrency_limit_queue_size=4)),
        *run(4, 0.2, **child("Row", "row", created_at=at(1.6), concurrency_limit_buffering_duration_s=1.4)),
    ],
]
TREE = """\
Order root
│ 10:00:00.990  pushed by POST /orders
│ 10:00:01.000  started after 10 ms in the queue
│ 10:00:03.000  done after 2.0 s
├─ Mail mail
│    10:00:01.500  pushed by Order
│    10:00:02.500  started after 10 ms in the queue
│    10:00:03.000  done after 500 ms
├─ Row row
│    10:00:01.600  pushed by Order
│    10:00:02.600  held: its limit is reached (4 wait)
│    10:00:04.000  started after 10 ms in the queue, 1.4 s of them at its limit
│    10:00:04.200  done after 200 ms
├─ Index index
│    10:00:02.000  pushed by Order
│    10:00:05.000  started after 3.0 s in the queue
│    10:00:05.200  failed after 200 ms: OSError: away; next run in 1.5 s
│    10:00:07.000  started after 10 ms in the queue
│    10:00:07.100  done after 100 ms
└─ Mail second
     10:00:02.100  not pushed: a duplicate of mail
"""


@each_row("order", [1, -1])
def test_story_of_a_request_is_a_tree_of_its_jobs(story, order):
    text = story("c1", *([one[::order] for one in CHAIN][::order]))
    heading, when, empty, tree = text.split("\n", 3)
    assert heading == "c1: 5 jobs, 5 runs, 1 failed, 6.1 s"
    assert when == "2026-11-29 10:00:00.990 to 10:00:07.100 UTC  caller_id=POST /orders"
    assert (empty, tree) == ("", TREE)


def test_story_of_a_job_is_that_of_its_request(story):
    assert story("index", *CHAIN) == story("c1", *CHAIN)


def test_story_reads_stdin_gzip_and_patterns(story, tmp_path):
    lines = [one for process in CHAIN for one in process]
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "a.log.gz").write_bytes(gzip.compress("\n".join(lines[:4]).encode()))
    (folder / "b.log").write_text("\n".join(lines[2:]))
    expected = story("c1", *CHAIN)
    assert story("c1", words=(str(folder / "*.log*"),)) == expected
    assert story("index", words=("-",), lines="\n".join(lines)) == expected
    assert "there is no such file" in story("c1", words=(str(folder / "none*"),), status=2)
    assert "this is a folder. Give log files" in story("c1", words=(str(folder),), status=2)


def test_story_leaves_out_lines_of_other_programs(story):
    noise = ["c1 in a text", '{"correlation_id":"c1"', "[1]", '{"correlation_id":"c1","time":5}', "{}", "\x00c1{"]
    other = json.dumps({"time": at(1), "job_status": "start", "jid": "x", "correlation_id": "c12"})
    assert story("c1", *CHAIN, [*noise, other]) == story("c1", *CHAIN)
    assert "no line has the id c2" in story("c2", *CHAIN, status=1)


@each_row(
    "written",
    [
        b'{"jid":"a"}\n',
        b'worker-1  | {"jid":"a"}\n',
        b'2026-11-29T10:00:00Z stdout F {"jid":"a"}\n',
        b'{"log":"{\\"jid\\":\\"a\\"}\\n","stream":"stdout"}\n',
    ],
)
def test_line_is_read_behind_a_prefix_and_in_a_log_driver(written):
    assert facts_of(written) == {"jid": "a"}


def test_batch_stands_with_its_owner_and_its_callback(story):
    told = [
        json.dumps({"time": at(1.5), "event_name": "batch.created", "bid": "b1", "jobs": 1, **ROOT, "jid": None}),
        json.dumps({"time": at(9), "event_name": "batch.success", "bid": "b1", "message": "all succeeded"}),
    ]
    member = run(4, 1, **child("Row", "row", created_at=at(1.6), bid="b1"))
    callback = run(5.1, 0.1, **child("Done", "done", created_at=at(5.01)))
    found = story("c1", run(1, 2, **ROOT), [*callback, *told, *member], words=("--json",))
    (batch,) = found["batches"]
    assert (batch["owner"], [one["status"] for one in batch["moments"]]) == ("root", ["batch.created", "batch.success"])
    assert {one["jid"]: (one["parent"], one["relation"], one["callback_of"]) for one in found["jobs"]} == {
        "root": (None, "root", None),
        "row": ("root", "pushed", None),
        "done": ("root", "callback", "b1"),
    }


def test_job_that_pushes_itself_for_hours_is_told(story):
    """Each job is pushed by the one before it, and the tree is as deep as their number."""
    lines = []
    for number in range(1_500):
        moment = at(number / 30)
        fields = {
            "class": "Loop",
            "jid": f"l{number}",
            "correlation_id": "c1",
            "created_at": moment,
            "meta.caller_id": "Loop",
        }
        lines += [
            json.dumps({"time": at(number / 30 + 0.005), "job_status": "start", **fields}),
            json.dumps({"time": at(number / 30 + 0.034), "job_status": "done", **fields}),
        ]
    found = story("c1", lines, words=("--json",))
    assert {one["parent"] for one in found["jobs"]} == {None, *(f"l{number}" for number in range(1_499))}


def test_other_ends_and_events_are_told(story):
    fields = {**ROOT, "created_at": at(0.5)}
    lines = [
        line(1, "paused", pause_control="manual", pause_reason="reindex", **fields),
        line(2, "deferred", job_deferred_by="feature_flag", deferred_for_s=90, **fields),
        line(3, "start", **fields),
        line(4, "snoozed", limiter="api", retry_in_s=5, **fields),
        line(5, "recovered", cause="death", destination="its queue", **fields),
        line(6, "fail", dead=True, error_class="KeyError", **fields),
        line(7, "dropped", dropped_by="job", dropped_reason="gone", **fields),
        line(8, "rescheduled", rescheduled_as="again", **fields),
        line(9, "quarantined", **fields),
        json.dumps({"time": at(9.5), "event_name": "job.odd", "message": "a text\nforged", "jid": "root"}),
    ]
    told = [one.split("  ", 2)[-1].strip() for one in story("root", lines).splitlines()[4:]]
    assert [one.partition("  ")[2] or one for one in told] == [
        "pushed by POST /orders",
        "held: its class is paused by manual (reindex)",
        "deferred by feature_flag, next try in 1 min 30 s",
        "started",
        "snoozed by api; next run in 5.0 s",
        "recovered (death); it is in its queue",
        "failed: KeyError; it is dead",
        "dropped by job: gone",
        "pushed once more for a duplicate, as again",
        "quarantined",
        "job.odd: a text\\nforged",
    ]


def test_chain_of_too_many_lines_says_so(story, monkeypatch):
    monkeypatch.setattr(chains, "MOST_LINES", 3)
    assert "There are more lines" in story("c1", *CHAIN)
