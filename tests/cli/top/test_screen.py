"""Test the drawing of the live view: it fits every size, shows the selected row, and escapes foreign text."""

import pytest

from framework.admin import JobRecord, RunningJob
from framework.admin.explain_class import RunCounts
from framework.admin.rates import QueueRates, ShardRates
from framework.cli.top.command import make_frame
from framework.cli.top.facts import ClassFigures
from framework.cli.top.screen import Size, as_text, draw
from framework.cli.top.state import HEADINGS, Table, TableRow, ViewState, press
from framework.settings.model import SizeLimitSettings
from framework.terminal.output import text_width
from tests.cli.top.facts_of_a_shop import NOW, facts, held, process, queue
from tests.harness import encoded
from tests.tables import each_row

HOSTILE = "mail\x1b[2J\n日本"
RATES = ShardRates(12.5, 0.0, {HOSTILE: QueueRates(3.0, 2.55)})
SHOP = facts(
    *(queue(f"q{number}", number) for number in range(40)),
    *(queue(HOSTILE, 1_234, 61.0),),
    processes=[process()],
    held=[held()],
    processed=1_000,
)


def frame(state, failures=()):
    return make_frame([(SHOP, RATES)], dict(failures), 2.0, state)


def texts(state, size, failures=()):
    return [line.text for line in draw(frame(state, failures), state, size)]


@pytest.mark.parametrize("size", [(1, 1), (20, 3), (40, 10), (80, 24), (200, 70)])
def test_lines_fill_a_terminal_of_any_size(size):
    shown = texts(ViewState(), Size(*size), {"second": "no answer: " + "x" * 300}.items())
    assert len(shown) == size[1]
    assert {text_width(text) for text in shown} == {size[0]}
    assert all(text.isprintable() for text in shown)


def test_figures_rates_and_hostile_names_are_shown():
    lines = list(as_text(frame(ViewState()), ViewState()))
    assert lines[1] == "processed 1,000 (12.5/s)  failed 100 (0.0/s)  busy 1/5 in 0 processes"
    assert lines[4:7] == [
        "queues (41)",
        "SHARD  QUEUE              JOBS   LATENCY    IN/S  OUT/S  STATE",
        r"main   mail\x1b[2J\n日本  1,234  1 min 1 s  3.0   2.5    no process",
    ]
    assert "main   limit Report  3     1 min 30 s" in lines


def test_selected_row_is_on_the_screen_wherever_it_is():
    state = ViewState(view="queues")
    for key in ("end", "up", "page up", "home"):
        state, _ = press(state, key, frame(state).tables)
        (line,) = [one for one in draw(frame(state), state, Size(80, 12)) if one.style == "selected"]
        assert line.text.startswith("main   q" if key != "home" else "main   mail"), key


def test_each_table_has_a_share_of_the_room():
    shown = texts(ViewState(), Size(100, 24))
    assert [
        line.split()[0] for line in shown if "(" in line and line.split()[0] in ("queues", "processes", "jobs", "held")
    ] == [
        "queues",
        "processes",
        "jobs",
        "held",
    ]


def test_last_line_has_keys_question_filter_or_message():
    state = ViewState(view="queues")
    last = lambda one: texts(one, Size(120, 24))[-1]  # noqa: E731
    assert last(state).startswith("Enter show  p pause  q quit")
    assert last(ViewState(view="queues", read_only=True)).startswith("Enter show  q quit")
    asked, _ = press(state, "p", frame(state).tables)
    assert last(asked).startswith(r"Pause mail\x1b[2J\n日本 on main? y: yes, any other key: no")
    typing, _ = press(state, "/", frame(state).tables)
    assert last(typing).startswith("filter: _")
    assert last(ViewState(pattern="q1", message="done")).startswith("filter 'q1' (Esc clears)  done")


def test_shard_that_does_not_answer_is_named():
    line = draw(frame(ViewState(), {"second": "no answer since 10:00:00Z"}.items()), ViewState(), Size(80, 24))[3]
    assert (line.text.rstrip(), line.style) == ("second: no answer since 10:00:00Z", "alert")


def test_classes_are_rows_with_their_figures():
    figures = [
        ClassFigures("Mail", RunCounts(60, 3, 28.5, 6.0), 1_200, True, 0, ""),
        ClassFigures("Report", RunCounts(), 0, False, 7, "2/2"),
    ]
    view = ViewState(view="classes")
    lines = as_text(make_frame([(facts(classes=figures), RATES)], {}, 2.0, view), view)
    assert list(lines)[5:] == [
        "SHARD  CLASS   RUNS/MIN  MEAN   FAILED  WAITING  HELD  LIMIT",
        "main   Mail    10.0      0.5 s  3       ~1,200   0     -",
        "main   Report  0.0       -      0       0        7     2/2",
    ]


@each_row(
    "view, expected",
    [
        (
            "classes",
            [
                "Report on main",
                "  limit          2/2",
                "  held by        its limit: 3 jobs, the oldest for 1 min 30 s",
                "  running        Report j1 for 30 s in host:7:aabbccddeeff",
                "  look further   application-worker jobs explain Report",
                "                 application-worker jobs top dead --class Report --by error",
            ],
        ),
        (
            "queues",
            [
                "mail on main",
                "  jobs           5",
                "  served by      host:7:aabbccddeeff (1/5 busy)",
                "  running        Report j1 for 30 s in host:7:aabbccddeeff",
                "  look further   application-worker jobs top queue:mail",
            ],
        ),
        (
            "processes",
            [
                "host:7:aabbccddeeff on main",
                "  ended          4 runs of mail",
                "  running        Report j1 for 30 s in host:7:aabbccddeeff",
                "  look further   application-worker jobs stack host:7:aabbccddeeff",
            ],
        ),
        ("held", ["limit Report on main", "  look further   application-worker jobs limits Report"]),
    ],
)
def test_enter_shows_details_with_the_newest_figures(view, expected, monkeypatch):
    monkeypatch.delenv("FRAMEWORK_CONFIG_DIR", raising=False)
    running = RunningJob(
        *("main", "host:7:aabbccddeeff", "t", "mail", NOW - 30),
        JobRecord("main", encoded("Report", jid="j1"), SizeLimitSettings()),
    )
    shop = facts(
        queue("mail", 5),
        processes=[process(runs={"mail": 4})],
        held=[held()],
        jobs=[running],
        classes=[ClassFigures("Report", RunCounts(), 0, False, 3, "2/2")],
    )
    older = facts(queue("mail", 4), processes=[process()], held=[held()], classes=[*shop.classes])
    before = make_frame([(older, RATES)], {}, 2.0, ViewState(view=view))
    state, _ = press(ViewState(view=view), "enter", before.tables)
    shown = [one.text.rstrip() for one in draw(make_frame([(shop, RATES)], {}, 2.0, state), state, Size(100, 30))]
    for line in expected:
        assert line in shown
    assert press(state, "escape", before.tables).state.shown is None


def test_enter_shows_the_job_and_any_key_leads_back():
    record = JobRecord("main", encoded("MailWorker", jid="j1", args=["x" * 200], tenant=7), SizeLimitSettings())
    row = TableRow("jobs", "jobs main p t", RunningJob("main", "host:7:aa", "t", "mail", NOW, record), ())
    table = Table("jobs", HEADINGS["jobs"], [row], 1)
    state, _ = press(ViewState(view="jobs"), "enter", [table])
    shown = [one.text.rstrip() for one in draw(frame(state), state, Size(60, 24))]
    assert "j1: MailWorker on main" in shown
    assert "".join(shown).count("x") >= 200
    assert "  tenant         7" in shown
    assert press(state, "escape", [table]).state.shown is None
    assert "Enter shows the details of a row" in press(ViewState(), "enter", []).state.message
