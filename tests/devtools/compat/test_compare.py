"""Compare two releases of one application: a deploy's incompatibilities are found, and the advice removes each."""

import ast
from datetime import date, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.declare import registry
from framework.devtools.compat.compare import ReleaseComparison, ServedQueues
from framework.devtools.compat.manifest import accept_worker, manifest_text, next_manifest, parse_manifest, snapshot
from framework.route.router import Router
from framework.settings.model import RoutingRule
from tests.harness import examples
from tests.tables import each_row

DAY = date(2026, 3, 1)
HEAD = """
from typing import *
from typing_extensions import NotRequired, TypedDict
from framework import ApplicationWorker, spread
class Box(TypedDict):
    size: int
    label: NotRequired[str]
"""


def indented(body):
    return "\n".join(f"    {line}" for line in body.splitlines())


def workers(source, day=DAY, *, rules=(("*", "default"),), retired=(), strict="raise", name="1", module="jobs"):
    """Return the manifest of an application with these classes (``ClassName: body``) in a module ``jobs``."""
    blocks = source if isinstance(source, dict) else {"SomeWorker": source}
    with registry.isolated():
        space = {"__name__": module}
        for word, body in blocks.items():
            text = f"{HEAD}class {word}(ApplicationWorker):\n    feature_category = 'not_owned'\n{indented(body)}\n"
            exec(text, space)
        found = [worker.declaration() for worker in registry.workers()]
    router = Router([RoutingRule(*rule) for rule in rules], ["main", "second"])
    return snapshot(found, router, strict=strict, retired=retired, release=name, day=day)


def compared(old, new, *, served=("default",), shards=("main", "second")):
    last = parse_manifest(manifest_text(old), "workers/released.yml")
    assert last == old
    return ReleaseComparison(last, new, ServedQueues(served, shards)).findings()


def codes(found):
    return [one.code for one in found if one.fails]


def changes(found):
    return " | ".join(one.message for one in found if not one.fails)


def test_compare_unchanged_workers_have_no_findings():
    body = (
        "version = 2\naliases = ('OldWorker',)\ndef perform(self, a: int, *rest: str): ...\ndef perform_v1(self): ..."
    )
    assert compared(workers(body), workers(body)) == []


ARGUMENTS = {
    "added": ("a: int", "a: int, b: str", "added-without-default"),
    "added among others": ("a: int, b: int", "a: int, c: int, b: int", "added-without-default", "reordered"),
    "default dropped": ("a: int = 5", "a: int", "default-dropped"),
    "removed": ("a: int, b: str = 'x'", "a: int", "removed"),
    "removed in front": ("a: int, b: int", "b: int", "removed", "reordered"),
    "the rest removed": ("a: int, *more: int", "a: int", "removed"),
    "reordered": ("user_id: int, project_id: int", "project_id: int, user_id: int", "reordered"),
    "narrowed": ("a: int | None", "a: int", "type-narrowed"),
    "narrowed to words": ("a: str", "a: Literal['x', 'y']", "type-narrowed"),
    "narrowed inside": ("a: dict[str, list[float]]", "a: dict[str, list[int]]", "type-narrowed"),
    "changed": ("a: int", "a: str", "type-changed"),
    "a word less": ("a: Literal['x', 'y']", "a: Literal['x']", "type-narrowed"),
    "the rest narrowed": ("*a: int | str", "*a: int", "type-narrowed"),
    "the rest meets a position": ("*a: int", "a: str = 'x', *b: int", "type-changed"),
    "float to int": ("a: float", "a: int", "type-narrowed"),
    "bool to int": ("a: bool", "a: int", "type-changed"),
}


@each_row(("old", "new", "expected"), [(one, two, list(rest)) for one, two, *rest in ARGUMENTS.values()], ids=ARGUMENTS)
def test_compare_finds_incompatible_arguments_with_remedy(old, new, expected):
    before = workers(f"version = 1\ndef perform(self, {old}): ...")
    found = compared(before, workers(f"version = 1\ndef perform(self, {new}): ..."))
    assert codes(found) == expected
    for finding in found:
        assert finding.place == "jobs.SomeWorker.perform"
        assert finding.step
        assert str(finding).startswith(f"jobs.SomeWorker.perform: {finding.message} [{finding.code}]\n  step: ")
    if len(expected) == 1:
        followed = [line for line in found[0].write if not line.startswith("or, ")]
        version = [] if any(line.startswith("version") for line in followed) else ["version = 1"]
        assert codes(compared(before, workers("\n".join([*version, *followed])))) == []


PLAIN = ["int", "str", "float | None", "bool", "Any", "list[int]", "dict[str, list[str]]", "Literal['x', 2]", "Box"]


@st.composite
def signatures(draw):
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=4))
    optional = draw(st.integers(0, len(names)))
    words = [f"{name}: {draw(st.sampled_from(PLAIN))}" for name in names]
    words = [word if index < optional else f"{word} | None = None" for index, word in enumerate(words)]
    return ", ".join(["self", *words, *(["*more: int"] if draw(st.booleans()) else [])])


@pytest.mark.campaign
@given(signatures(), signatures())
@settings(max_examples=examples(150))
def test_check_compat_proposes_only_python_that_holds(old, new):
    """Every proposed line is Python, and a class with this line is accepted."""
    before = workers(f"version = 1\ndef perform({old}): ...")
    for finding in compared(before, workers(f"version = 1\ndef perform({new}): ...")):
        written = [line for line in finding.write if line.startswith(("def ", "version "))]
        for line in written:
            ast.parse(line)
        if any(line.startswith("def perform(") for line in written):
            body = written if any(line.startswith("version") for line in written) else ["version = 1", *written]
            workers("\n".join(body))


SAFE = {
    "added with a default": (
        "a: int",
        "a: int, b: str = 'x'",
        "do not take b: do not pass it in a push of this release yet",
    ),
    "renamed": ("a: int", "b: int", "a is called b (jobs carry positions only"),
    "widened": ("a: int", "a: int | None", "a takes int | None, not only int"),
    "int to float": ("a: int", "a: float", "a takes float, not only int"),
    "a default": ("a: int", "a: int = 3", "a has a default"),
    "another default": ("a: int = 1", "a: int = 2", "jobs without a mean 2 now, not 1"),
    "any number of them": ("a: int", "*a: int", "do not take all that perform takes now"),
    "no longer declared": ("a: int", "a", "a takes Any, not only int"),
    "a field more": ("a: dict[str, int]", "a: dict[str, Any]", "a takes dict[str, Any]"),
}


@each_row(("old", "new", "expected"), SAFE.values(), ids=SAFE)
def test_compare_safe_change_is_reported_as_change(old, new, expected):
    found = compared(workers(f"def perform(self, {old}): ..."), workers(f"def perform(self, {new}): ..."))
    assert codes(found) == []
    assert expected in changes(found)


def test_compare_without_strict_types_checks_only_the_count():
    loose = "strict_arguments = 'warn'\n"
    assert (
        codes(compared(workers("def perform(self, a: int): ..."), workers(f"{loose}def perform(self, a: str): ...")))
        == []
    )
    assert codes(
        compared(workers(f"{loose}def perform(self, a: int): ..."), workers("def perform(self, a: int): ..."))
    ) == ["type-narrowed"]
    old, new = "def perform(self, a: int): ...", "def perform(self, a: str, b: int): ..."
    assert codes(compared(workers(old), workers(new, strict="off"))) == ["added-without-default"]


def test_compare_raised_version_needs_the_former_handler():
    old = workers("version = 2\ndef perform(self, path: str): ...")
    found = compared(old, workers("version = 3\ndef perform(self, project_id: int): ..."))
    assert codes(found) == ["no-handler"]
    assert found[0].write == ("def perform_v2(self, path: str) -> None: ...",)
    body = "version = 3\ndef perform(self, project_id: int): ...\n"
    corrected = compared(old, workers(body + found[0].write[0]))
    assert codes(corrected) == []
    assert "version 3, not 2: its jobs wait until a process of this release fetches them" in changes(corrected)
    narrow = compared(old, workers(body + "def perform_v2(self, path: Literal['x']): ..."))
    assert codes(narrow) == ["type-narrowed"]
    assert narrow[0].place == "jobs.SomeWorker.perform_v2"
    same = compared(old, workers("version = 3\ndef perform(self, path: str): ..."))
    assert codes(same) == []
    assert "version 3, not 2: its jobs wait until a process of this release fetches them" in changes(same)


@pytest.mark.parametrize("retry", ["False", "0", "3"])
def test_version_raised_without_retries_is_no_finding(retry):
    old = workers(f"retry = {retry}\ndef perform(self, path: str): ...")
    body = "version = 1\ndef perform(self, project_id: int): ...\ndef perform_v0(self, path: str): ..."
    found = compared(old, workers(f"retry = {retry}\n{body}"))
    assert codes(found) == []
    assert changes(found) == "version 1, not 0: its jobs wait until a process of this release fetches them"
    # An argument with a default may be missing in a job.
    assert codes(compared(old, workers(f"retry = {retry}\ndef perform(self, path: str, mode: str = 'x'): ..."))) == []


def test_compare_lowered_version_is_refused():
    found = compared(workers("version = 2\ndef perform(self): ..."), workers("version = 1\ndef perform(self): ..."))
    assert codes(found) == ["version-lowered"]
    assert found[0].write[0] == "version = 3"


def test_manifest_keeps_former_versions_for_a_month():
    first = workers("version = 1\ndef perform(self, a: int): ...")
    second = next_manifest(workers("version = 2\ndef perform(self, a: int): ...", DAY + timedelta(5), name="2"), first)
    assert second.workers["SomeWorker"].former_versions == {1: DAY + timedelta(5)}
    body = "version = 3\ndef perform(self, a: str): ...\ndef perform_v2(self, a: int): ..."
    soon = compared(second, workers(body, DAY + timedelta(35)))
    assert codes(soon) == ["no-handler"]
    assert "perform_v1" in soon[0].message
    assert codes(compared(second, workers(body, DAY + timedelta(36)))) == []
    late = workers(body, DAY + timedelta(36), name="3")
    assert next_manifest(late, second).workers["SomeWorker"].former_versions == {2: DAY + timedelta(36)}


def test_compare_handler_is_needed_for_a_month():
    with_handler = "version = 1\ndef perform(self, a: str): ...\ndef perform_v0(self, a: int): ..."
    last = next_manifest(workers(with_handler, name="2"), workers("def perform(self, a: int): ...", DAY - timedelta(9)))
    without = "version = 1\ndef perform(self, a: str): ..."
    soon = compared(last, workers(without, DAY + timedelta(30)))
    assert codes(soon) == ["handler-dropped"]
    assert f"retries of them last until {DAY + timedelta(30)}" in soon[0].message
    late = compared(last, workers(without, DAY + timedelta(31)))
    assert codes(late) == []
    assert "perform_v0 was removed" in changes(late)


def test_compare_removed_worker_must_be_retired_or_aliased():
    old = workers({"FaxWorker": "def perform(self, number: str): ...", "KeptWorker": "def perform(self): ..."})
    kept = {"KeptWorker": "def perform(self): ..."}
    found = compared(old, workers(kept))
    assert codes(found) == ["vanished"]
    assert found[0].write == ("retired_workers:  # in config/application.yml", '  "FaxWorker": "why it went"')
    gone = compared(old, workers(kept, retired=["FaxWorker"]))
    assert codes(gone) == []
    assert "also those that processes of the last release still push" in changes(gone)
    assert codes(compared(old, workers({"KeptWorker": "aliases = ('FaxWorker',)\ndef perform(self): ..."}))) == [
        "removed"
    ]
    last = next_manifest(workers(kept, retired=["FaxWorker"], name="2"), old)
    assert codes(compared(last, workers(kept, DAY + timedelta(3)))) == ["retirement-dropped"]
    assert codes(compared(last, workers(kept, DAY + timedelta(31)))) == []


def test_compare_renamed_worker_needs_an_alias():
    old = workers({"StatsWorker": "def perform(self, year: int): ...", "OtherWorker": "def perform(self): ..."})
    body = "def perform(self, year: int): ..."
    other = {"OtherWorker": "def perform(self): ..."}
    found = compared(old, workers({**other, "YearStatsWorker": body}))
    assert codes(found) == ["renamed-without-alias"]
    assert found[0].write == ("aliases = ('StatsWorker',)".replace("'", '"'),)
    corrected = compared(old, workers({**other, "YearStatsWorker": f"{found[0].write[0]}\n{body}"}))
    assert codes(corrected) == []
    assert "wait until a process of this release fetches them" in changes(corrected)
    unretried = compared(old, workers({**other, "YearStatsWorker": f"retry = False\n{found[0].write[0]}\n{body}"}))
    assert codes(unretried) == []
    named = compared(old, workers({**other, "StatsWorker": f"wire_name = 'Office::StatsWorker'\n{body}"}))
    assert codes(named) == ["renamed-without-alias"]
    assert "its wire name was StatsWorker and is Office::StatsWorker: jobs of the old name" in named[0].message
    assert codes(compared(old, workers({**other, "InvoiceWorker": "def perform(self, customer: str): ..."}))) == [
        "vanished"
    ]


def test_compare_module_to_package_names_both_remedies():
    """``shop/jobs.py`` becomes ``shop/jobs/hello.py``, and so the wire name changes."""
    body = "def perform(self, year: int): ..."
    old = workers({"HelloWorker": body}, module="shop.jobs")
    (found,) = [one for one in compared(old, workers({"HelloWorker": body}, module="shop.jobs.hello")) if one.fails]
    assert found.code == "renamed-without-alias"
    assert found.message.startswith(
        "its module was shop.jobs and is shop.jobs.hello, which makes its wire name Jobs::HelloWorker and not HelloWorker"
    )
    (line,) = found.write
    assert line == 'wire_name = "HelloWorker"  # keeps the name; or, to take the new one: aliases = ("HelloWorker",)'
    for remedy in (line, 'aliases = ("HelloWorker",)'):
        corrected = workers({"HelloWorker": f"{remedy}\n{body}"}, module="shop.jobs.hello")
        assert codes(compared(old, corrected)) == []


def test_compare_alias_is_needed_for_a_month():
    body = "def perform(self): ..."
    last = next_manifest(
        workers({"NewWorker": f"aliases = ('OldWorker',)\n{body}"}, name="2"),
        workers({"OldWorker": body}, DAY - timedelta(50)),
    )
    assert last.workers["NewWorker"].aliases == {"OldWorker": DAY}
    assert codes(compared(last, workers({"NewWorker": body}, DAY + timedelta(30)))) == ["alias-dropped"]
    assert codes(compared(last, workers({"NewWorker": body}, DAY + timedelta(31)))) == []
    assert codes(compared(last, workers({"NewWorker": body}, retired=["OldWorker"]))) == []
    again = next_manifest(
        workers({"NewWorker": f"aliases = ('OldWorker',)\n{body}"}, DAY + timedelta(7), name="3"), last
    )
    assert again.workers["NewWorker"].aliases == {"OldWorker": DAY}


def test_compare_former_queue_is_served_or_reported():
    body = "queue_namespace = 'shop'\nretry_queue = 'later'\ndef perform(self): ..."
    old = workers(body, rules=[("*", None)])
    new = workers("queue_namespace = 'shop'\ndef perform(self): ...", rules=[("*", "fast")])
    found = compared(old, new, served=["fast"])
    assert codes(found) == ["queue-unserved", "queue-unserved"]
    assert "no line of config/queues.yml serves that queue" in found[0].message
    served = compared(old, new, served=["fast", "shop", "later"])
    assert codes(served) == []
    assert "its jobs go to fast, not to shop:some, which is served" in changes(served)
    assert (
        codes(compared(old, workers({"OtherWorker": "def perform(self, x: int): ..."}, retired=["SomeWorker"])))
        == ["queue-unserved"] * 2
    )
    last = next_manifest(workers("def perform(self): ...", DAY, rules=[("*", "fast")], name="2"), old)
    assert last.former_queues == {"shop:some": {"main": DAY}, "later": {"main": DAY}}
    # The next release, too, must serve them: its own queues are not all.
    (found,) = [
        one
        for one in compared(last, workers("def perform(self): ...", rules=[("*", "fast")]), served=["fast", "later"])
        if one.fails
    ]
    assert (found.code, found.place) == ("queue-unserved", "released.yml: former_queues")
    assert found.message.startswith(f"shop:some got jobs until {DAY}, and no line of config/queues.yml serves it")
    later = workers("def perform(self): ...", DAY + timedelta(31), rules=[("*", "fast")])
    assert codes(compared(last, later, served=["fast"])) == []
    assert set(last.queues) == {"fast", "shop:some", "later"}
    late = next_manifest(workers("def perform(self): ...", DAY + timedelta(31), rules=[("*", "later")], name="3"), last)
    assert late.former_queues == {"fast": {"main": DAY + timedelta(31)}}


def test_changed_shard_is_reported_and_removed_shard_fails():
    old = workers("shard = 'second'\ndef perform(self): ...")
    new = workers("def perform(self): ...")
    assert codes(compared(old, new)) == []
    assert "its jobs go to the shard main, not second" in changes(compared(old, new))
    assert codes(compared(old, new, shards=["main"])) == ["shard-vanished"]


def test_each_shard_of_a_spread_class_is_compared():
    both = workers("shard = spread('main', 'second')\ndef perform(self): ...")
    assert set(both.locations) == {("default", "main"), ("default", "second")}
    new = workers("def perform(self): ...")
    assert compared(new, both) == []
    assert "its jobs go to the shard main, not second" in changes(compared(both, new))
    (vanished,) = compared(both, both, shards=["main"])
    assert vanished.message.startswith("its jobs went to the shard second, which")
    last = next_manifest(workers("def perform(self): ...", DAY, name="2"), both)
    assert last.former_queues == {"default": {"second": DAY}}


def test_compare_new_worker_is_a_change():
    both = {"SomeWorker": "def perform(self): ...", "NewWorker": "retry = 0\ndef perform(self, x: int): ..."}
    found = compared(workers("def perform(self): ..."), workers(both))
    assert codes(found) == []
    assert (
        changes(found)
        == "is new: its jobs wait until a process of this release fetches them, and start late while the deploy lasts"
    )


def test_compare_accepted_worker_is_not_compared():
    old = workers({"SomeWorker": "def perform(self, a: int = 5): ...", "GoneWorker": "def perform(self): ..."})
    new = workers("def perform(self, a: int): ...", DAY + timedelta(1))
    assert codes(compared(old, new)) == ["vanished", "default-dropped"]
    once = accept_worker(old, new, "SomeWorker", "every push passes it since 4.1")
    assert codes(compared(once, new)) == ["vanished"]
    twice = accept_worker(once, new, "GoneWorker", "never pushed")
    assert compared(twice, new) == []
    assert twice.accepted == {"SomeWorker": "every push passes it since 4.1", "GoneWorker": "never pushed"}
    assert next_manifest(new, twice).accepted == {}


def test_manifest_of_same_release_keeps_its_dates():
    body = "version = 1\ndef perform(self): ...\ndef perform_v0(self): ..."
    first = next_manifest(workers(body), workers("def perform(self): ...", name="0"))
    assert next_manifest(workers(body, DAY + timedelta(3)), first) == first
    assert next_manifest(workers(body, DAY + timedelta(3), name="2"), first).day == DAY + timedelta(3)
