"""The picture of a workflow: where boxes stand, what is folded, and what lines join."""

from dataclasses import replace

from framework.features.workflows.graph import MOST_ACROSS, depths, done_jobs, draw_steps
from framework.features.workflows.workflow import StepStatus


def step(name, after="", on=None, state="waiting", started=None):
    on = on or ("success" if after else "start")
    return StepStatus(name, state, after, on, ("Job",), f"aw-wf-1.{name}", 2, 1, 0, 0, 0, started, None)


def line_of(count, state=lambda at: "waiting"):
    return [step(f"s{at}", f"s{at - 1}" if at else "", state=state(at)) for at in range(count)]


def boxes(steps):
    return [(one["first"], one["last"], one["steps"], one["state"]) for one in draw_steps(steps)["boxes"]]


def test_one_step_is_one_box():
    drawn = draw_steps([step("only", state="running", started=1.0)])
    (box,) = drawn["boxes"]
    assert (box["x"], box["y"], box["bid"], box["jobs"], box["done"]) == (1, 1, "aw-wf-1.only", 2, 1)
    assert (drawn["width"], drawn["height"], drawn["lines"]) == (210, 46, [])
    assert draw_steps([])["boxes"] == []


def test_branches_of_failures_stand_beside_their_steps():
    steps = [*line_of(3), step("undo", "s0", "failure"), step("tell", "undo"), step("alarm", "", "failure")]
    drawn = draw_steps(steps)
    places = {one["first"]: (one["x"] // 232, one["y"] // 72) for one in drawn["boxes"]}
    assert places == {"s0": (0, 0), "s1": (0, 1), "s2": (0, 2), "undo": (1, 1), "tell": (1, 2), "alarm": (1, 3)}
    assert [one["is_failure"] for one in drawn["lines"]] == [False, False, True, False]
    assert drawn["lines"][2]["path"] == "M105 45V55H337V73"


def test_step_after_the_branch_of_all_failures_stands_below_it():
    steps = [*line_of(2), step("alarm", "", "failure"), step("clean", "alarm")]
    assert depths(steps) == {"s0": 0, "s1": 1, "alarm": 2, "clean": 3}


def test_thousand_steps_are_a_few_boxes():
    state = lambda at: "succeeded" if at < 600 else "running" if at == 600 else "waiting"  # noqa: E731
    assert boxes(line_of(1_000, state)) == [
        ("s0", "s0", 1, "succeeded"),
        ("s1", "s598", 598, "succeeded"),
        ("s599", "s599", 1, "succeeded"),
        ("s600", "s600", 1, "running"),
        ("s601", "s601", 1, "waiting"),
        ("s602", "s998", 397, "waiting"),
        ("s999", "s999", 1, "waiting"),
    ]
    drawn = draw_steps(line_of(1_000, state))
    assert len(drawn["lines"]) == 6
    assert drawn["height"] == 7 * 72 - 28 + 2


def test_thirty_steps_of_many_states_are_all_shown():
    found = boxes(line_of(30, lambda at: ("succeeded", "failed")[at % 2]))
    assert len(found) == 30


def test_wide_row_is_folded_into_its_worst_state():
    wide = [step(f"w{at}", "s0", state="failed" if at == 17 else "running") for at in range(20)]
    drawn = draw_steps([step("s0"), *wide])
    row = [one for one in drawn["boxes"] if one["y"] > 1]
    assert len(row) == MOST_ACROSS
    assert (row[-1]["steps"], row[-1]["state"], row[-1]["bid"]) == (16, "failed", "")
    assert len(drawn["lines"]) == MOST_ACROSS


def test_changed_definition_that_leads_nowhere_is_drawn():
    steps = [step("a", "gone"), step("b", "b"), step("c", "later"), step("later", "c")]
    assert len(draw_steps(steps)["boxes"]) == 4


def test_jobs_of_a_step_that_is_not_written_are_not_done():
    # Its batch is not there, so nothing is pending.
    unwritten = [replace(step("a", state=state), pending=0) for state in ("waiting", "skipped", "starting")]
    assert [done_jobs(one) for one in unwritten] == [0, 0, 0]
    assert done_jobs(replace(unwritten[0], state="succeeded")) == 2
    assert done_jobs(step("a", state="starting")) == 1


def test_long_name_is_cut():
    (box,) = draw_steps([step("a" * 50)])["boxes"]
    assert (len(box["name"]), box["first"]) == (26, "a" * 50)
