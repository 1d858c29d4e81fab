"""List, show, cancel and delete workflows of a real server."""

import json

import pytest
from click.testing import CliRunner

from framework.cli.main import jobs
from framework.features.batches import keys as batch_keys
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.commands import workflows
from framework.features.workflows.definition import StepJobs, WorkflowDefinition, WorkflowStep
from framework.wire import keys

ROW = (StepJobs("RowWorker", {}),)
STEPS = WorkflowDefinition(
    (
        WorkflowStep("import", "start", "", ROW),
        WorkflowStep("validate", "success", "import", (StepJobs("RowWorker", {}, "shop:rows"),)),
        WorkflowStep("end", "success", "validate", ROW),
        WorkflowStep("report", "failure", "", ROW),
        WorkflowStep("undo", "failure", "import", ROW),
    )
)


@pytest.fixture
def run(redis, redis_url, monkeypatch, tmp_path):
    """Return a function that runs a command, and returns what it printed."""
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.setenv("FRAMEWORK_CONFIG_DIR", str(tmp_path))
    (tmp_path / "redis.yml").write_text("shards: {main: {url: embedded}}")

    def call(*words, status=0):
        group = jobs if words[0] == "workflow" else workflows
        ended = CliRunner().invoke(group, list(words), prog_name="application-worker")
        assert ended.exit_code == status, ended.output
        return ended.output

    return call


@pytest.fixture
def two(redis):
    """A workflow whose first step has failed, and one that waits."""
    for at, name in enumerate(("wf-failing", "wf-new")):
        fields = {"name": "shop\x1b[1m", "description": "", "definition": STEPS.encode(), "ttl_s": 60, "import:jobs": 3}
        steps = " ".join(one.name for one in STEPS.steps)
        redis.hset(workflow_keys.workflow(name), mapping={**fields, "steps": steps, "created_at": 1_700_000_000 + at})
        redis.zadd(workflow_keys.WORKFLOWS, {name: 2e9})
    mapping = {
        "import:state": "failed",
        "undo:state": "starting",
        "import:started_at": 1,
        "undo:started_at": 2,
        "undo:jobs": 1,
    }
    redis.hset(workflow_keys.workflow("wf-failing"), mapping={**mapping, "import:dead": 1, "failed_steps": 1})
    redis.hset(batch_keys.batch("aw-wf-failing.undo"), mapping={"total": 1, "pending": 1, "ttl_s": 60, "created_at": 2})


def test_workflow_is_shown_as_a_graph(run, two, redis):
    lines = run("workflow", "wf-failing").splitlines()
    assert lines[0] == r"%% wf-failing on main: shop\x1b[1m, running"
    graph = lines[lines.index("flowchart LR") :]
    assert graph[1:6] == [
        '    s1["import<br>2 of 3 succeeded, 1 dead"]:::failed',
        '    s2["validate<br>jobs not computed yet"]:::waiting',
        '    s3["end<br>jobs not computed yet"]:::waiting',
        '    s4["report<br>jobs not computed yet"]:::waiting',
        '    s5["undo<br>0 of 1 succeeded"]:::starting',
    ]
    assert graph[6:11] == [
        "    s1 --> s2",
        "    s2 --> s3",
        "    s2 -. failure .-> s4",
        "    s3 -. failure .-> s4",
        "    s1 -. failure .-> s5",
    ]
    assert [line.split()[:2] for line in graph[11:]] == [["classDef", one] for one in ("failed", "starting", "waiting")]
    (found,) = json.loads(run("workflow", "wf-failing", "--json"))["found"]
    assert (found["state"], found["steps"][0]["dead"], found["mermaid"]) == ("running", 1, "\n".join(graph))


def test_workflows_are_listed_cancelled_and_deleted(run, two, redis):
    _, first, second = run("list").splitlines()
    assert first.split()[:5] == ["main", "wf-new", "waiting", r"shop\x1b[1m", "import"]
    assert second.split()[:5] == ["main", "wf-failing", "running", r"shop\x1b[1m", "undo"]
    assert [one["id"] for one in json.loads(run("list", "--json"))["workflows"]] == ["wf-new", "wf-failing"]
    assert "Give --yes" in run("cancel", "wf-failing", status=2)
    assert run("cancel", "wf-failing", "--yes") == "main: the workflow wf-failing is cancelled\n"
    assert redis.zrange(keys.CANCELLED, 0, -1) == [b"aw-wf-failing.undo"]
    assert '"undo<br>0 of 1 succeeded"]:::cancelled' in run("workflow", "wf-failing")
    for name in ("wf-failing", "wf-new"):
        run("delete", name, "--yes")
    # A mark stays: jobs of a cancelled and deleted batch must not run.
    assert set(redis.keys("*")) == {keys.AUDIT.encode(), keys.COUNTERS.encode(), keys.CANCELLED.encode()}
    redis.zadd(workflow_keys.WORKFLOWS, {"wf-expired": 1})
    assert run("list") == "There is no workflow.\n"
    for words in (("workflow",), ("cancel", "--yes"), ("delete", "--yes")):
        assert "no shard has the workflow wf-x" in run(words[0], "wf-x", *words[1:], status=1)
        assert "is no id of a workflow" in run(words[0], "x", *words[1:], status=2)


def test_names_in_the_graph_are_text_and_no_markup(run, two, redis):
    name = 'a"]:::x;click s1 "javascript:alert(1)"<img/src=x>&`#'
    forged = WorkflowDefinition(
        (
            WorkflowStep(name, "start", "", ROW),
            WorkflowStep("b", "success", "none", ROW),
            WorkflowStep("c", "failure", "none", ROW),
        )
    )
    redis.hset(workflow_keys.workflow("wf-new"), mapping={"definition": forged.encode(), f"{name}:state": "x; click"})
    graph = run("workflow", "wf-new").splitlines()[1:]
    assert graph[1] == (
        '    s1["a#34;#93;:::x#59;click s1 #34;javascript:alert(1)#34;#60;img/src#61;x#62;#38;#96;#35;'
        '<br>jobs not computed yet"]:::waiting'
    )
    assert [line for line in graph if "click" in line] == [graph[1]]
