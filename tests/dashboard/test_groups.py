"""The pages of one workflow and of one batch, on data that workflows and batches have written."""

import json

from framework.dashboard import Caller
from framework.features.batches import keys as batch_keys
from framework.features.workflows import keys as workflow_keys
from framework.features.workflows.definition import StepJobs, WorkflowDefinition, WorkflowStep
from tests.dashboard.test_pages import ATTACKS, check_inert

ADMIN = Caller("ann", "admin")


def add_workflow(redis, name, steps, **fields):
    made = (
        WorkflowStep(one, "success" if before else "start", before, (StepJobs("Job", {}),)) for one, before in steps
    )
    jobs = {f"{one}:jobs": 2 for one, _ in steps}
    known = {"name": name, "definition": WorkflowDefinition(tuple(made)).encode(), "ttl_s": 600, "created_at": 1}
    known["steps"] = " ".join(one for one, _ in steps)
    redis.hset(workflow_keys.workflow(name), mapping={**known, **jobs, **fields})


def add_batch(redis, bid, parent="", children=(), **fields):
    facts = {"pending": 1, "total": 3, "parent": parent, "children": len(children), "created_at": 1, "ttl_s": 600}
    redis.hset(batch_keys.batch(bid), mapping={**facts, **fields})
    if children:
        redis.sadd(f"{batch_keys.batch(bid)}:children", *children)


def test_graph_leads_to_the_batch_of_a_step_or_to_its_row(browser, shards, redis):
    states = {"a:state": "succeeded", "b:state": "running", "a:started_at": 1, "b:started_at": 2}
    add_workflow(redis, "wf-1", [("a", ""), ("b", "a"), ("c", "b")], **states)
    add_batch(redis, "aw-wf-1.b", total=2)
    client = browser(ADMIN)
    page = client.get("/workflows/wf-1").text
    found = check_inert(page, "workflow")
    assert page.count("<rect") == 3 + 3  # those of the brand
    assert "/batches/aw-wf-1.b" in found.links
    assert {"#step-a", "#step-c"} <= set(found.links)
    assert 'aria-label="b: running, 1/2"' in page
    assert '<rect class="good"' in page
    assert '<rect class="now"' in page
    drawn = client.get("/api/workflows/wf-1").json()
    assert [(one["name"], one["level"]) for one in drawn["steps"]] == [("a", 1), ("b", 2), ("c", 3)]
    assert client.get("/api/workflows/wf-2").status_code == 404
    assert client.get("/workflows/wf-1", headers={"hx-request": "true"}).text.count("<svg") == 1


def test_workflow_of_a_thousand_steps_is_shown_whole_in_the_table(browser, shards, redis):
    add_workflow(redis, "wf-1", [(f"s{at}", f"s{at - 1}" if at else "") for at in range(1_000)])
    page = browser(ADMIN).get("/workflows/wf-1").text
    assert page.count('<tr id="step-') == 1_000
    assert ">998 steps<" in page


def test_hostile_workflow_and_batch_are_escaped(browser, shards, redis):
    for attack in ATTACKS:
        callback = json.dumps([[attack, json.dumps({"class": attack})]])
        add_workflow(redis, attack, [(attack, "")], description=attack, parent=attack, **{f"{attack}:state": attack})
        add_batch(redis, attack, attack, [attack], description=attack, callback_queue=attack, on_success=callback)
        redis.sadd(f"{batch_keys.batch(attack)}:dead", attack)
    client = browser(ADMIN)
    for attack in ATTACKS:
        if "/" in attack:  # no path of one word
            continue
        for path in (f"/workflows/{attack}", f"/batches/{attack}"):
            answer = client.get(path)
            assert (answer.status_code, attack in check_inert(answer.text, path).text) == (200, True)


def test_batch_shows_its_tree_its_callbacks_and_its_jobs(browser, shards, redis):
    add_batch(redis, "aw-top", children=["aw-middle", "aw-beside"], description="nightly")
    add_batch(redis, "aw-beside", "aw-top")
    callback = json.dumps([["default", json.dumps({"class": "Report", "args": ["secret"]})], ["", "{}"]])
    nested = [f"aw-{number}" for number in range(3)]
    add_batch(redis, "aw-middle", "aw-top", nested, on_success=callback, on_death="not JSON", complete_at=5)
    for bid in nested:
        add_batch(redis, bid, "aw-middle", ["aw-leaf"] if bid == "aw-1" else [])
    add_batch(redis, "aw-leaf", "aw-1", ["aw-below"])
    redis.sadd(f"{batch_keys.batch('aw-middle')}:failed", "J1")
    redis.sadd(f"{batch_keys.batch('aw-middle')}:dead", "J2")
    client = browser(ADMIN)
    found = client.get("/api/batches/aw-middle").json()
    assert [one["batch"] for one in found["above"]] == ["aw-top"]
    tree = found["tree"]
    assert [one["batch"] for one in tree["nested"]] == nested
    assert [one["batch"] for one in tree["nested"][1]["nested"]] == ["aw-leaf"]
    assert (tree["nested"][1]["nested"][0]["children"], tree["nested"][1]["nested"][0]["nested"]) == (1, [])
    events = {one["event"]: one for one in found["events"]}
    assert events["success"]["callbacks"] == [{"class": "Report", "queue": "default"}, {"class": "", "queue": ""}]
    assert (events["complete"]["at"], events["death"]["callbacks"]) == (5.0, [])
    assert (found["failed_jobs"], found["dead_jobs"]) == (["J1"], ["J2"])
    page = client.get("/batches/aw-middle").text
    assert "secret" not in page
    assert "1 further nested batches" in page
    links = check_inert(page, "batch").links
    assert {"/batches/aw-top", "/batches/aw-leaf", "/job/J2", "/classes/Report"} <= set(links)
    assert client.get("/batches/aw-gone").status_code == 404


def test_batch_that_was_changed_to_be_nested_in_itself_is_shown(browser, shards, redis):
    add_batch(redis, "aw-1", "aw-1", ["aw-1", "aw-2"])
    add_batch(redis, "aw-2", "aw-1", ["aw-1"])
    found = browser(ADMIN).get("/api/batches/aw-1").json()
    assert [one["batch"] for one in found["tree"]["nested"]] == ["aw-2"]
    assert found["above"] == []


def test_many_nested_batches_are_bounded(browser, shards, redis):
    names = [f"aw-{number}" for number in range(2_000)]
    add_batch(redis, "aw-top", children=names)
    pipeline = redis.pipeline()
    for bid in names:
        add_batch(pipeline, bid, "aw-top")
    pipeline.execute()
    tree = browser(ADMIN).get("/api/batches/aw-top").json()["tree"]
    assert (len(tree["nested"]), tree["children"]) == (20, 2_000)
