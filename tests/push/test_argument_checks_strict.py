"""Check wrong and loose arguments in each mode and in each kind of push."""

import datetime as dt
import decimal
import json
import logging
import math
import uuid
from typing import Any

import pytest

from framework.application_worker import ApplicationWorker
from framework.declare import registry
from framework.errors import ArgumentsError, DeclarationError
from framework.execute.inline import run_inline
from framework.process_clock import process_clock
from framework.push.argument_checks import LOG_INTERVAL_S, StrictArgumentsCheck
from framework.wire import keys
from tests.push.conftest import LetPass, worker
from tests.tables import each_row

MODES = ("raise", "warn", "off")
SECRET = "hush-hush"
seen: list[Any] = []


def take(self, project_id: int, mode: str = "full", scores: list[float] | None = None) -> None:
    seen.append((project_id, mode, scores))


METHODS = {
    "async": lambda cls, args: cls.perform_async(*args),
    "in": lambda cls, args: cls.perform_in(60, *args),
    "at": lambda cls, args: cls.perform_at(dt.datetime(2099, 1, 1, tzinfo=dt.UTC), *args),
    "set": lambda cls, args: cls.set(queue="q2", retry=1).perform_async(*args),
    "bulk": lambda cls, args: cls.perform_bulk([(7,), args]),
    "bulk_in": lambda cls, args: cls.perform_bulk_in(60, [(7,), args], batch_size=1, batch_delay=5),
    "bulk_for": lambda cls, args: cls.perform_bulk_for([(7,), args], arguments=lambda one: cls.arguments(*one)),
    "inline": lambda cls, args: cls.perform_inline(*args),
}


@pytest.fixture(params=["quick", "middleware"])
def opened_with(request, pusher):
    """Open the client in a mode, with and without a client middleware; inline runs use it too."""
    seen.clear()
    middleware = [LetPass] if request.param == "middleware" else []

    def open_(mode):
        check = StrictArgumentsCheck(mode)
        client = pusher.open(*middleware, strict_arguments=check).client

        def perform_inline(cls, request):
            run_inline(cls, client.payload_bytes(request), (), 1_000_000, check, None)

        client.perform_inline = perform_inline

    return open_


WRONG_COUNT = [
    ("wrong type", (SECRET,), "project_id", "valid integer, got str"),
    ("bool for int", (True,), "project_id", "got bool"),
    ("inner type", (1, "x", [SECRET]), "scores", r"\(at \[0\]\)"),
    ("tuple", (1, "x", (1.5,)), "scores", "is a tuple"),
    ("datetime", (1, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), "mode", "is a datetime"),
]
NOT_JSON = [
    ("nan", (1, "x", [math.nan]), "scores", r"\(at \[0\]\) is nan"),
    ("bytes", (1, SECRET.encode()), "mode", "is a bytes"),
    ("surrogate", (1, SECRET + "\ud800"), "mode", "surrogate"),
    ("object", (1, object()), "mode", "is an object"),
    ("itself", (1, "x", seen), None, None),
    ("missing", (), "project_id", "is missing"),
    ("too many", (1, "x", None, SECRET), None, "takes 3 arguments, 4 were given"),
]


def refused(method, cls, args, argument, words, redis):
    with pytest.raises(ArgumentsError, match=words) as caught:
        METHODS[method](cls, args)
    error = caught.value
    assert (error.worker.rpartition(".")[2], error.argument) == ("Job", argument)
    assert SECRET not in str(error)
    if method.startswith("bulk") and words != "is missing" and "were given" not in words:
        assert "(job 1 of the bulk)" in str(error)
    assert redis.dbsize() == 0, redis.keys("*")
    assert seen == []


@each_row("method", METHODS, around=registry.isolated)
@each_row(("args", "argument", "words"), [row[1:] for row in WRONG_COUNT], ids=[row[0] for row in WRONG_COUNT])
def test_push_of_loose_arguments_is_refused_by_default(opened_with, redis, method, args, argument, words):
    opened_with("raise")
    refused(method, worker(perform=take), args, argument, words, redis)


@each_row("mode", MODES)
@each_row("method", METHODS, around=registry.isolated)
@each_row(("args", "argument", "words"), [row[1:] for row in NOT_JSON], ids=[row[0] for row in NOT_JSON])
def test_push_of_no_json_is_refused_in_every_mode(opened_with, redis, mode, method, args, argument, words):
    if words is None:
        loop: list[Any] = []
        loop.append(loop)
        args, argument, words = (1, "x", loop), "scores", "nested deeper"
    opened_with(mode)
    refused(method, worker(perform=take), args, argument, words, redis)


@each_row("mode", MODES, around=registry.isolated)
@each_row(
    ("call", "words"),
    [
        (lambda cls: cls.perform_async(1, modee="x"), "did you mean 'mode'"),
        (lambda cls: cls.perform_inline(1, modee="x"), "did you mean 'mode'"),
        (lambda cls: cls.perform_in(60, 1, project_id=2), "given twice"),
        (lambda cls: cls.arguments(1, modee="x"), "did you mean 'mode'"),
        (lambda cls: cls.arguments(), "is missing"),
        (lambda cls: cls.perform_bulk([(1,), 7]), "job 1 of the bulk is an int"),
        (lambda cls: cls.perform_bulk(["ab"]), "job 0 of the bulk is a str"),
    ],
)
def test_push_of_a_wrong_count_is_refused_in_every_mode(opened_with, redis, mode, call, words):
    opened_with(mode)
    with pytest.raises(ArgumentsError, match=words):
        call(worker(perform=take))
    assert redis.dbsize() == 0
    assert seen == []


def stored(redis):
    """Return the arguments of all jobs, in any key."""
    found = [data for name in ("default", "q2", "job") for data in redis.lrange(keys.queue(name), 0, -1)]
    return [json.loads(data)["args"] for data in (*found, *redis.zrange(keys.SCHEDULE, 0, -1))]


LOOSE = (dt.datetime(2026, 2, 3, tzinfo=dt.UTC), (1, {2: decimal.Decimal("1.5")}), {"b", "a"})
FORM = ["2026-02-03T00:00:00Z", [1, {"2": "1.5"}], ["a", "b"]]


@pytest.mark.parametrize("mode", ["warn", "off"])
@each_row("method", METHODS, around=registry.isolated)
def test_push_of_loose_arguments_writes_their_json_values(opened_with, redis, caplog, mode, method):
    seen.clear()
    caplog.clear()
    opened_with(mode)
    with caplog.at_level(logging.DEBUG):
        METHODS[method](worker(perform=take), LOOSE)
    if method == "inline":
        assert seen == [tuple(FORM)]
    else:
        assert FORM in stored(redis)
        assert len(stored(redis)) == (2 if "bulk" in method else 1)
    assert len(caplog.records) == (mode == "warn")


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "framework"]


def test_warning_names_class_arguments_and_reasons_only(opened_with, caplog):
    opened_with("warn")
    worker(perform=take).perform_async(SECRET, (SECRET,), [1.5, SECRET])
    (line,) = lines(caplog)
    for words in (
        "arguments.not_strict",
        "class='Job'",
        "'project_id': 'does not fit: input should be a valid integer, got str'",
        "'mode': 'is a tuple",
        "'scores': 'does not fit: (at [1])",
    ):
        assert words in line
    assert SECRET not in line
    assert caplog.records[0].levelname == "WARNING"


def test_warning_names_at_most_20_arguments(opened_with, caplog):
    def many(self, *numbers: int) -> None: ...

    opened_with("warn")
    worker(perform=many).perform_async(*["x"] * 1_000)
    (line,) = lines(caplog)
    assert line.count("does not fit") == 20


def test_warning_of_a_bulk_is_one_line_with_its_count(opened_with, caplog, redis):
    opened_with("warn")
    cls = worker(perform=take, queue="default")
    cls.perform_bulk([(1,), ("2",), *[(n,) for n in range(2_000)], (3, ("x",)), ("4",)])
    (line,) = lines(caplog)
    assert "jobs=3" in line
    assert "'project_id'" in line
    assert "'mode'" in line
    assert redis.llen("queue:default") == 2_004


def test_warning_of_a_refused_bulk_is_not_logged(opened_with, caplog, redis):
    opened_with("warn")
    with pytest.raises(ArgumentsError, match=r"\(job 2 of the bulk\)"):
        worker(perform=take).perform_bulk([(1,), ("2",), (1, b"x")])
    assert lines(caplog) == []
    assert redis.dbsize() == 0


def test_warning_of_a_class_is_logged_once_a_minute(opened_with, caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(process_clock, "monotonic", lambda: now[0])
    opened_with("warn")
    first, second = worker(perform=take), worker("Other", perform=take)
    for _ in range(3):
        first.perform_async("1")
    second.perform_async("1")
    now[0] = LOG_INTERVAL_S
    first.perform_async("1")
    assert [("'Job'" in line, line.rpartition("suppressed=")[2].split()[0]) for line in lines(caplog)] == [
        (True, "0"),
        (False, "0"),
        (True, "2"),
    ]


def test_push_of_strict_arguments_logs_nothing(opened_with, caplog):
    for mode in MODES:
        opened_with(mode)
        cls = worker(perform=take)
        cls.perform_async(1, "x", [1, 2.5])
        cls.perform_bulk([(1,), [1, "x"]])
    assert caplog.records == []


@pytest.mark.parametrize("setting", MODES)
def test_mode_of_the_class_overrides_the_setting(opened_with, redis, caplog, setting):
    opened_with(setting)
    with pytest.raises(ArgumentsError):
        worker(perform=take, strict_arguments="raise").perform_async("1")
    worker(perform=take, strict_arguments="off").perform_async("1")
    assert lines(caplog) == []
    worker(perform=take, strict_arguments="warn").perform_bulk([("1",)])
    assert len(lines(caplog)) == 1
    assert stored(redis) == [["1"], ["1"]]


def test_mode_of_a_child_may_be_the_setting(opened_with, redis):
    opened_with("raise")

    class Loose(ApplicationWorker, abstract=True):
        feature_category = "not_owned"
        strict_arguments = "off"

    class Strict(Loose):
        strict_arguments = None
        perform = take

    with pytest.raises(ArgumentsError):
        Strict.perform_async("1")
    assert redis.dbsize() == 0


# --- annotations and defaults that JSON cannot carry ----------------------------------------------------------------


def when(self, moment: dt.datetime, ids: tuple[int, ...] = (), name: str = None, one: uuid.UUID | None = None):  # type: ignore[assignment]  # noqa: RUF013 - as loose code has it
    seen.append((moment, ids, name, one))


def test_mode_off_allows_any_annotation(opened_with, redis, caplog):
    opened_with("raise")
    for attributes in ({}, {"strict_arguments": "raise"}, {"strict_arguments": None}):
        with pytest.raises(DeclarationError, match=r"'moment': datetime has no JSON form.*strict_arguments = 'warn'"):
            worker(perform=when, **attributes)
    cls = worker(perform=when, strict_arguments="warn", queue="default")
    moment = dt.datetime(2026, 2, 3, tzinfo=dt.UTC)
    cls.perform_async(moment)
    (line,) = lines(caplog)
    assert "'moment': 'is a datetime" in line
    cls.perform_inline(moment, one=uuid.UUID(int=1))
    assert seen == [("2026-02-03T00:00:00Z", [], None, "00000000-0000-0000-0000-000000000001")]
    cls.perform_bulk([(moment, (1, 2))] * 3)
    assert stored(redis)[0] == ["2026-02-03T00:00:00Z", [1, 2]]


def test_omitted_argument_with_a_loose_default_logs_nothing(opened_with, caplog):
    opened_with("raise")
    cls = worker(perform=when, strict_arguments="warn")
    cls.perform_async("2026-02-03T00:00:00Z")
    cls.perform_bulk([("2026-02-03T00:00:00Z", [1])])
    assert lines(caplog) == []


def test_default_that_is_no_json_is_refused_when_written(opened_with, redis):
    def perform(self, number: int, marker: Any = b"x", text: str = "") -> None: ...

    opened_with("off")
    cls = worker(perform=perform, strict_arguments="off")
    cls.perform_async(1)
    with pytest.raises(ArgumentsError, match="argument 'marker' is a bytes"):
        cls.perform_async(1, text="x")
    assert len(stored(redis)) == 1
