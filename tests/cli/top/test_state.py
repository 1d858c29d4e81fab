"""Test what keys do to the live view: select, filter, sort, change the view, ask, refuse, end."""

import pytest

from framework.admin.rates import ShardRates
from framework.cli.top.screen import parse_keys
from framework.cli.top.state import RowOrder, ViewState, make_table, press, tables_of
from tests.cli.top.facts_of_a_shop import facts, held, process, queue

SHOP = facts(queue("mail", 5), queue("reports", 9, paused=True), processes=[process()], held=[held()])


def tables(state):
    return [
        make_table(name, [(SHOP, ShardRates())], state.pattern, state.order(name)) for name in tables_of(state.view)
    ]


def after(keys, state=None):
    """Return the state and the confirmed action after these keys, which may be separated by spaces."""
    state, intent = state or ViewState(), None
    for key in keys.split(" ") if " " in keys else keys:
        state, intent = press(state, key.replace("_", " "), tables(state))
    return state, intent


def names(state):
    return [row.cells[1].text for table in tables(state) for row in table.rows]


def test_action_is_carried_out_after_a_yes_only():
    state, intent = after("p")
    assert (intent, state.asked.verb, state.asked.row.subject.name) == (None, "unpause", "reports")
    assert after("n", state)[0].message == "Nothing was changed: unpause needs the key y."
    assert after("n", state)[1] is None
    assert after("y", state)[1] == state.asked
    assert after("y", state)[0].asked is None


def test_quiet_asks_for_the_selected_process():
    state, _ = after("down down u")
    assert (state.asked.verb, state.asked.row.subject.identity) == ("quiet", "host:7:aabbccddeeff")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("r", "The key r does nothing here: it is no action for queues."),
        ("5u", "The key u does nothing here: it is no action for held."),
        ("8d", "The key d does nothing here: no row is selected."),
    ],
)
def test_key_without_effect_says_why(keys, message):
    assert after(keys)[0].message == message
    assert after(keys)[0].asked is None


def test_read_only_refuses_every_action():
    state, intent = after("p", ViewState(read_only=True))
    assert (intent, state.asked) == (None, None)
    assert state.message == "unpause is refused: this view was started with --read-only."
    assert after("y", state)[1] is None


def test_filter_takes_letters_until_enter_and_escape_clears_it():
    state, _ = after("/ m A i l x backspace enter")
    assert (state.pattern, state.typing, names(state)) == ("mAil", False, ["mail", "host:7:aabbccddeeff"])
    assert after("escape x", state)[0].pattern == ""
    assert after("/ q escape")[0] == ViewState()
    assert after("/q")[0].ended is False


def test_sort_goes_through_the_columns_and_their_order():
    assert names(ViewState())[:2] == ["reports", "mail"]
    state, _ = after("2S")
    assert (names(state), state.message) == (["mail", "reports"], "queues: sorted by JOBS, in the opposite order")
    state, _ = after("2sssssss")
    assert state.orders == {"queues": RowOrder(2)}


def test_views_turn_by_number_and_tab():
    assert after("8")[0].view == "dead"
    assert after("tab tab")[0].view == "processes"
    assert after("back_tab x")[0].view == after("0")[0].view == "classes"
    assert after("q")[0].ended


def test_selection_stops_at_the_ends_and_follows_its_thing():
    bottom, _ = after("end down x")
    assert bottom.selected.endswith("waiting Report")
    assert after("home up x", bottom)[0].selected == "queues main reports"
    state, _ = after("j")
    assert state.selected == "queues main mail"
    assert after("S u", state)[0].asked is None, "the queue stays selected after a sort"


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q/\r\x7f\t", ["q", "/", "enter", "backspace", "tab"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[Z\x1b", ["up", "down", "page up", "back tab", "escape"]),
        ("é日".encode(), ["é", "日"]),
        (b"\x1b[200;3R\x01\xffa", ["\ufffd", "a"]),
    ],
)
def test_bytes_of_a_terminal_become_keys(data, keys):
    assert list(parse_keys(data)) == keys
