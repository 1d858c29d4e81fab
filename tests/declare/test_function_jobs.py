"""Register functions and methods as jobs."""

import asyncio
import functools
import inspect
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from framework import ApplicationWorker, DeclarationError, Discard, background
from framework import function_jobs as registering
from framework.application_worker import ATTRIBUTES
from framework.declare import registry
from framework.declare.names import class_name_of
from framework.errors import ArgumentsError, NoSuchMethodError
from framework.function_jobs import BackgroundFunction, WorkerAttributes
from tests.tables import each_row


class TeamWorker(ApplicationWorker, abstract=True):
    feature_category = "onboarding"
    retry = 7

    @classmethod
    def retry_in(cls, count, error, job):
        return timedelta(seconds=count)


def send_welcome(user_id: int, mode: str = "full") -> str:
    """Welcome."""
    return f"{user_id} {mode}"


async def ping(*names: str) -> str:
    return ",".join(names)


def look_at(mailbox: "Mailbox", depth: int = 1) -> str:
    return f"{mailbox.number} {depth}"


class Mailbox:
    def __init__(self, number):
        self.number = number

    @classmethod
    def load(cls, mailbox_id: int, fresh: bool = False) -> "Mailbox | None":
        return cls(mailbox_id) if mailbox_id else None

    @classmethod
    def sweep(cls, days: int) -> str:
        return f"{cls.__name__} {days}"

    @staticmethod
    def count(days: int) -> int:
        return days

    def clean(self, days: int, *labels: str) -> str:
        return f"{self.number} {days} {labels}"

    async def aclean(self, days: int) -> str:
        return f"{self.number} {days}"


class SpamMailbox(Mailbox):
    def clean(self, days: int, *labels: str) -> str:
        return f"spam {super().clean(days, *labels)}"


async def aload(mailbox_id: int) -> Mailbox | None:
    return Mailbox(mailbox_id) if mailbox_id else None


def run(function, *args):
    """Call ``perform`` as a process does."""
    result = function.worker().perform(*args)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


@each_row(
    ("function", "expected"),
    [
        ("send_welcome", "SendWelcomeWorker"),
        ("_send_2", "Send2Worker"),
        ("sendHTML", "SendHTMLWorker"),
        ("Invoice.send_now", "Invoice.SendNowWorker"),
    ],
)
def test_class_name_of_function(function, expected):
    assert class_name_of(function) == expected


def test_background_function_is_a_worker_class(recorder):
    welcome = background(send_welcome, base=TeamWorker, loggable_arguments=("mode",), queue="mails")
    declaration = welcome.worker.declaration()
    assert declaration.wire_name == "SendWelcomeWorker" or declaration.wire_name.endswith("::SendWelcomeWorker")
    assert registry.find(declaration.wire_name) is welcome.worker
    assert (declaration.qualified_name, declaration.feature_category) == (f"{__name__}.send_welcome", "onboarding")
    assert (declaration.retry, declaration.queue, declaration.loggable_positions) == (7, "mails", {1})
    assert welcome.worker.retry_in(3, ValueError(), {}) == timedelta(seconds=3)
    assert (welcome.__name__, welcome.__doc__, welcome(7)) == ("send_welcome", "Welcome.", "7 full")
    assert str(inspect.signature(welcome)) == "(user_id: int, mode: str = 'full') -> str"
    assert run(welcome, 7, "short") == "7 short"
    assert welcome.route().queue == declaration.generated_queue


def test_background_pushes_are_those_of_a_class(recorder):
    welcome = background(feature_category="onboarding")(send_welcome)
    assert welcome.perform_async(7, mode="short") == "jid1"
    welcome.perform_in(timedelta(minutes=5), 8)
    welcome.set(retry=1).perform_async(9)
    welcome.perform_inline(10)
    welcome.perform_bulk([(1,), (2, "short")])
    welcome.perform_bulk_for([3], arguments=lambda number: welcome.arguments(number, mode="x"))
    assert [one.args for one in recorder.pushed] == [[7, "short"], [8], [9]]
    assert recorder.pushed[2].options == {"retry": 1}
    assert [(one, request.args) for one, request in recorder.inline] == [(welcome.worker, [10])]
    assert [one.args for one in recorder.bulks] == [[[1], [2, "short"]], [[3, "x"]]]
    with pytest.raises(ArgumentsError, match=r"send_welcome: argument 'mood' is not a parameter"):
        welcome.perform_async(7, mood="short")
    with pytest.raises(ArgumentsError, match="'user_id' does not fit"):
        welcome.worker.declaration().signature.check(["7"])
    for name in ("delay", "later"):
        with pytest.raises(NoSuchMethodError, match=r"send_welcome\.perform_"):
            getattr(welcome, name)


def test_background_method_is_called_on_the_loaded_object(recorder):
    clean = background(Mailbox.clean, loader=Mailbox.load, base=TeamWorker, loggable_arguments=("mailbox_id",))
    declaration = clean.worker.declaration()
    assert declaration.wire_name.endswith("Mailbox::CleanWorker")
    assert declaration.signature.names == ("mailbox_id", "days")
    assert declaration.signature.varargs == "labels"
    assert declaration.loggable_positions == {0}
    clean.perform_async(3, 30, "old")
    assert recorder.pushed[0].args == [3, 30, "old"]
    assert run(clean, 3, 30, "old") == clean(3, 30, "old") == "3 30 ('old',)"
    with pytest.raises(Discard) as caught:
        run(clean, 0, 30)
    assert caught.value.reason == "the loader returned None: the object is gone"
    with pytest.raises(ArgumentsError, match="'mailbox_id' is missing"):
        clean.perform_async()


def test_background_method_of_a_subclass_is_called():
    clean = background(Mailbox.clean, loader=SpamMailbox.load, base=TeamWorker)
    assert run(clean, 3, 30) == "spam 3 30 ()"


@each_row(
    ("function", "loader", "args", "result", "suffix"),
    [
        (Mailbox.aclean, aload, (3, 30), "3 30", "Mailbox::AcleanWorker"),
        (look_at, Mailbox.load, (3,), "3 1", "LookAtWorker"),
        (Mailbox.sweep, None, (9,), "Mailbox 9", "Mailbox::SweepWorker"),
        (SpamMailbox.sweep, None, (9,), "SpamMailbox 9", "SpamMailbox::SweepWorker"),
        (Mailbox.count, None, (9,), 9, "Mailbox::CountWorker"),
        (ping, None, ("a", "b"), "a,b", "PingWorker"),
    ],
    around=registry.isolated,
)
def test_background_kinds_of_functions(function, loader, args, result, suffix):
    options: Any = {} if loader is None else {"loader": loader}
    made = background(function, base=TeamWorker, **options)
    assert made.worker.declaration().wire_name.endswith(suffix)
    assert made.worker.declaration().is_async is inspect.iscoroutinefunction(function)
    assert run(made, *args) == result


def nested():
    def inside() -> None: ...

    return inside


def main_function() -> None: ...


main_function.__module__ = "__main__"


def _() -> None: ...


def yields(count: int):
    yield count


def two(one: int, other: int) -> Mailbox: ...


def days_of(days: int) -> Mailbox: ...


def keywords(*, count: int) -> None: ...


def unknown_name(count: "Nowhere") -> None: ...  # noqa: F821


@each_row(
    ("function", "options", "says"),
    [
        (lambda: None, {}, "a lambda has no name. Define it with def at the top level of a module"),
        (nested(), {}, "a function inside of a function exists only while that one runs"),
        (main_function, {}, "a program's main module has another name in every other process"),
        (_, {}, "its name has no letter or digit"),
        (functools.partial(send_welcome, 1), {}, "a partial cannot be a job"),
        (Mailbox, {}, "a type cannot be a job"),
        (len, {}, "a builtin_function_or_method cannot be a job"),
        (7, {}, "an int cannot be a job"),
        (staticmethod(send_welcome), {}, "a staticmethod cannot be a job"),
        (Mailbox(1).clean, {}, r"background\(Mailbox.clean, loader=...\)"),
        (Mailbox.clean, {}, "is a method, and a job carries no object. Give loader="),
        (yields, {}, "holds a yield"),
        (Mailbox.clean, {"loader": two}, "must take one argument by position"),
        (Mailbox.clean, {"loader": nested()}, "must take one argument by position"),
        (Mailbox.clean, {"loader": days_of}, "have a parameter 'days' each"),
        (Mailbox.clean, {"loader": aload}, "both def, or both async def"),
        (Mailbox.clean, {"loader": 7}, "both def, or both async def"),
        (send_welcome, {"base": ApplicationWorker, "retyr": 3}, "'retyr' is not a worker attribute"),
        (send_welcome, {"base": Mailbox}, "Allowed: an abstract worker class"),
        (send_welcome, {"urgency": "hihg"}, "urgency = 'hihg' is not allowed"),
        (send_welcome, {"loggable_arguments": ("mood",)}, "'mood' is not a parameter"),
        (keywords, {}, "a payload has a list of arguments"),
        (unknown_name, {}, "its annotations cannot be read at run time"),
    ],
    around=registry.isolated,
)
def test_background_wrong_declaration_says_what_to_do(function, options, says):
    with pytest.raises(DeclarationError, match=says):
        background(function, **{"base": TeamWorker, **options})
    assert registry.workers() == []


def test_background_twice_is_refused():
    welcome = background(send_welcome, base=TeamWorker)
    with pytest.raises(DeclarationError, match="is registered already"):
        background(welcome, base=TeamWorker)
    with pytest.raises(DeclarationError, match="Allowed: an abstract worker class"):
        background(ping, base=welcome.worker)


def test_background_wire_name_of_another_job_is_refused():
    background(send_welcome, base=TeamWorker)
    name = registry.workers()[0].declaration().wire_name
    with pytest.raises(DeclarationError, match=r"already the name of .*send_welcome"):
        type("SendWelcomeWorker", (TeamWorker,), {"wire_name": name, "perform": lambda self: None})
    assert (
        background(ping, base=TeamWorker, wire_name="Other::PingWorker").worker.declaration().wire_name
        == "Other::PingWorker"
    )


def test_background_module_loaded_again_replaces_its_jobs(monkeypatch):
    module = ModuleType("shop.mails.sending")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    code = "from framework import background\n@background(feature_category='not_owned')\ndef send(number: int) -> None: ...\n"
    for _ in range(2):
        exec(code, vars(module))
    assert isinstance(module.send, BackgroundFunction)
    assert registry.workers() == [module.send.worker]
    assert module.send.worker.declaration().wire_name == "Mails::SendWorker"


def test_background_keywords_are_the_attributes_of_a_class():
    assert WorkerAttributes.__annotations__.keys() == {name for name, one in ATTRIBUTES.items() if one.kind is None}
    assert registering.WorkerAttributes.__total__ is False
