"""Test a worker class used as another library's task: each use raises, names the right call, and pushes no job."""

import asyncio
import copy
import inspect
import json
import pickle
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import pytest

from framework import lease, limiter
from framework.application_worker import ApplicationWorker
from framework.declare.misuse import NAMES
from framework.errors import DeclarationError, MisuseError, NoSuchMethodError
from framework.features.concurrency.limited_capacity import LimitedCapacityWorker
from tests.declare.conftest import Recorder
from tests.tables import each_row


def receipts() -> Any:
    class ReceiptWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self, order_id: int = 0, language: str = "en") -> Any:
            """Send it."""
            return (type(self).__name__, order_id, language)

    return ReceiptWorker


NAME = "receipts.<locals>.ReceiptWorker"


@each_row("name", NAMES["method"])
def test_foreign_method_is_no_attribute_and_names_our_word(name: str, recorder: Recorder) -> None:
    worker = receipts()
    for asked in (worker, worker(), worker.set(queue="urgent")):
        assert not hasattr(asked, name)
        with pytest.raises(AttributeError) as caught:
            getattr(asked, name)
        assert isinstance(caught.value, NoSuchMethodError)
        assert NAMES["method"][name].text(NAME) in str(caught.value)
        assert f"there is no {name}. " in str(caught.value)
    assert not recorder.pushed


@each_row("name", ["delay", "apply_async", "send", "enqueue", "s", "revoke", "defer", "schedule", "perform_later"])
def test_foreign_method_names_perform_async(name: str, recorder: Recorder) -> None:
    with pytest.raises(NoSuchMethodError, match=r"ReceiptWorker\.perform_async\(\.\.\.\)"):
        getattr(receipts(), name)
    assert not recorder.pushed


@each_row("name", NAMES["self"])
def test_foreign_name_on_self_names_our_word(name: str) -> None:
    instance = receipts()()
    with pytest.raises(MisuseError) as caught:
        getattr(instance, name)()
    assert NAMES["self"][name].text(NAME) in str(caught.value)


def test_retry_is_a_number_on_the_class_and_on_self() -> None:
    class OftenWorker(ApplicationWorker):
        feature_category = "not_owned"
        retry = 7

        def perform(self) -> None: ...

    class ChildWorker(OftenWorker): ...

    assert (OftenWorker.retry, ChildWorker.retry, receipts().retry) == (7, 7, True)
    assert (OftenWorker().retry, repr(ChildWorker().retry), repr(receipts()().retry)) == (7, "7", "True")
    assert (ChildWorker.declaration().retry, receipts().declaration().retry) == (7, True)


def test_foreign_name_of_the_application_is_its_own() -> None:
    class Mailing:
        def send(self) -> str:
            return "sent"

    class MailWorker(ApplicationWorker, Mailing):
        feature_category = "not_owned"

        def perform(self) -> None: ...

        def schedule(self) -> str:
            return "scheduled"

    worker = MailWorker()
    assert (worker.send(), worker.schedule(), MailWorker.send(worker)) == ("sent", "scheduled", "sent")
    vars(worker)["delay"] = 5
    assert getattr(worker, "delay") == 5  # noqa: B009 - no type checker knows it
    assert not hasattr(worker, "enqueue")


@pytest.mark.parametrize("args", [(), (1,), (1, "de"), (None,), ("a",), ([1],), ({"a": 1},)])
def test_perform_on_the_class_names_perform_async(args: tuple[Any, ...], recorder: Recorder) -> None:
    worker = receipts()
    with pytest.raises(MisuseError, match=r"ReceiptWorker\.perform_async\(\.\.\.\)"):
        worker.perform(*args)
    with pytest.raises(TypeError, match="perform_inline"):
        worker.perform(order_id=1)
    assert not recorder.pushed


def test_perform_with_an_instance_runs() -> None:
    worker = receipts()

    class ChildWorker(worker):  # type: ignore[misc] # a class made here
        def perform(self, order_id: int = 0, language: str = "en") -> Any:
            return ("child", super().perform(order_id, language), worker.perform(self, order_id, language))

    assert worker().perform(3, language="de") == ("ReceiptWorker", 3, "de")
    assert worker.perform(worker(), 3) == ("ReceiptWorker", 3, "en")
    own = ("ChildWorker", 4, "en")
    assert ChildWorker().perform(4) == ("child", own, own)
    with pytest.raises(MisuseError, match="ChildWorker"):
        ChildWorker.perform(4)


def test_perform_of_a_capacity_worker_is_refused_too() -> None:
    class SweepWorker(LimitedCapacityWorker):
        feature_category = "not_owned"
        max_running_jobs = 1

        def perform_work(self, number: int) -> None: ...

        def remaining_work_count(self, number: int) -> int:
            return number

    with pytest.raises(MisuseError, match="perform_async"):
        SweepWorker.perform(1)  # type: ignore[arg-type] # the case


def test_perform_is_read_and_replaced_as_a_function() -> None:
    worker = receipts()
    assert inspect.isfunction(worker.perform)
    assert inspect.getdoc(worker.perform) == "Send it."
    assert list(inspect.signature(worker.perform).parameters) == ["self", "order_id", "language"]
    with mock.patch.object(worker, "perform", autospec=True) as perform:
        instance = worker()
        instance.perform(7)
        perform.assert_called_once_with(instance, 7)
        with pytest.raises(TypeError):
            instance.perform(7, "de", "more")
    with mock.patch.object(worker, "perform") as perform:
        worker().perform(8)
        perform.assert_called_once_with(8)
    assert worker().perform(9)[1] == 9


def test_worker_as_a_decorator_is_refused_with_a_class() -> None:
    def send_mail(address: str) -> None: ...

    for decorator in (receipts(), ApplicationWorker):
        with pytest.raises(MisuseError, match=r"not a decorator.*class SendMailWorker\(ApplicationWorker\)"):
            decorator(send_mail)


def test_instance_with_arguments_is_refused() -> None:
    worker = receipts()
    for call in (lambda: worker(1), lambda: worker(order_id=1), lambda: worker("a", "b")):
        with pytest.raises(MisuseError, match=r"takes no arguments.*perform_async"):
            call()
    assert isinstance(worker(), worker)


async def once(worker: Any) -> None:
    await worker.perform_async(1)


async def spread(worker: Any) -> None:
    args, named = (1,), {"language": "de"}
    await worker.set(queue="urgent").perform_async(*args, **named)


async def later(worker: Any) -> list[None]:
    return [await worker.perform_in(5, number) for number in range(2)]


async def many(worker: Any) -> None:
    await worker.perform_bulk([(1,)])


async def for_each(worker: Any) -> None:
    await worker.perform_bulk_for([1], arguments=worker.arguments)


async def generated(worker: Any) -> None:
    async def numbers() -> AsyncIterator[None]:
        yield await worker.perform_at(5_000_000_000, 1)

    assert [number async for number in numbers()]


async def streamed(worker: Any) -> None:
    await worker.perform_bulk_stream(iter([(1,)]))


@pytest.mark.parametrize("push", [once, spread, later, many, for_each, streamed, generated])
def test_awaited_push_names_the_jobs_that_it_has_made(push: Callable[[Any], Any], recorder: Recorder) -> None:
    with pytest.raises(
        MisuseError, match=r"before the await: .*do not push again\. Leave out await.*aperform_async"
    ) as caught:
        asyncio.run(push(receipts()))
    assert len(recorder.pushed) + len(recorder.bulks) == 1
    jid = "1 job" if push is streamed else "jid0" if recorder.bulks else "jid1"
    assert jid in str(caught.value)


def test_push_in_a_coroutine_is_a_str_everywhere_else(recorder: Recorder) -> None:
    worker = receipts()

    async def push() -> list[Any]:
        jid = worker.perform_async(1)
        await asyncio.sleep(0)
        in_a_thread = await asyncio.to_thread(worker.perform_async, 2)
        return [jid, in_a_thread, await worker.aperform_async(3)]

    jid, *others = asyncio.run(push())
    assert [type(other) for other in others] == [str, str]
    assert isinstance(jid, str)
    assert {jid: [jid]} == {str(jid): [str(jid)]}
    copies = [copy.deepcopy(jid), pickle.loads(pickle.dumps(jid)), json.loads(json.dumps(jid))]
    assert [type(one) for one in copies] == [str, str, str]
    assert [request.args for request in recorder.pushed] == [[1], [2], [3]]


def test_id_of_a_push_in_a_coroutine_may_be_a_name(recorder: Recorder) -> None:
    worker = receipts()

    async def push() -> Any:
        return worker.perform_async(1)

    jid = asyncio.run(push())
    names = [lease.Lease(jid, timeout=5).name, limiter.concurrent(jid, 1).name]
    assert names == [str(jid)] * 2
    assert {type(name) for name in names} == {str}


def test_ids_of_a_push_in_a_coroutine_may_be_arguments(recorder: Recorder) -> None:
    class FollowWorker(ApplicationWorker):
        feature_category = "not_owned"

        def perform(self, jid: str, jids: list[str], by_jid: dict[str, int]) -> None: ...

    async def ids() -> tuple[Any, Any, Any]:
        worker = receipts()
        return worker.perform_async(1), worker.perform_bulk([(1,)]), worker.perform_bulk_stream([(1,)])

    jid, jids, count = asyncio.run(ids())
    assert {type(one) for one in (jid, jids, count)}.isdisjoint({str, list, int})
    signature = FollowWorker.declaration().signature
    args = [jid, jids, {jid: count}]
    plain = [str(jid), list(jids), {str(jid): int(count)}]
    signature.check(args)
    assert signature.all_valid([args])
    assert signature.encode(args) == signature.encode(plain)
    assert signature.encode([jid, [], {}]) == signature.encode([str(jid), [], {}])
    assert [type(one) for one in signature.to_json_values(args)] == [str, list, dict]


def test_awaited_push_of_a_capacity_worker_is_refused(recorder: Recorder) -> None:
    class SweepWorker(LimitedCapacityWorker):
        feature_category = "not_owned"
        max_running_jobs = 1

        def perform_work(self) -> None: ...

        def remaining_work_count(self) -> int:
            return 0

    async def push() -> None:
        await SweepWorker.perform_with_capacity()  # type: ignore[misc] # the case

    with pytest.raises(MisuseError, match="not a coroutine"):
        asyncio.run(push())


@pytest.mark.parametrize("name", ["perform", "perform_v0"])
def test_method_without_self_is_refused(name: str) -> None:
    def without_self(order_id: int, language: str = "en") -> None: ...

    def none() -> None: ...

    def with_self(self: Any, order_id: int) -> None: ...

    def unused(_self: Any, order_id: int) -> None: ...

    def make(method: Any) -> Any:
        body = {"feature_category": "not_owned", "version": 1, "perform": with_self, name: method}
        return type("MailWorker", (ApplicationWorker,), body)

    for method, words in (
        (without_self, f"{name} needs self: its first parameter, 'order_id', "),
        (without_self, f"Write def {name}(self, order_id: int, language: str = 'en') -> None."),
        (none, f"Write def {name}(self) -> None."),
        (staticmethod(without_self), f"Allowed: an ordinary method, def {name}(self, ...)."),
        (classmethod(without_self), f"Allowed: an ordinary method, def {name}(self, ...)."),
    ):
        with pytest.raises(DeclarationError) as caught:
            make(method)
        assert words in str(caught.value)
        assert caught.value.attribute == name
    assert make(unused) is not None


def test_perform_work_without_self_is_refused() -> None:
    with pytest.raises(
        DeclarationError, match=r"perform_work needs self: .*Write def perform_work\(self, number: int\)"
    ):

        class SweepWorker(LimitedCapacityWorker):  # pyright: ignore[reportUnusedClass]
            feature_category = "not_owned"
            max_running_jobs = 1

            def perform_work(number: int) -> None: ...  # noqa: N805 # type: ignore[misc] # the case

            def remaining_work_count(self) -> int:
                return 0


def test_instance_outside_of_a_job_has_defaults(caplog: pytest.LogCaptureFixture) -> None:
    worker = receipts()()
    assert (worker.jid, worker.job_version, worker.cancelled, worker.interrupted) == ("", 0, False, False)
    with caplog.at_level("INFO", logger="framework"):
        worker.logger.info("sending", order_id=1)
    worker.log_extra(language="de")
    assert "sending order_id=1" in caplog.text
