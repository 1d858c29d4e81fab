"""Test the borders of each rule: the lines with a finding end in ``# here``."""

import pytest

from framework.devtools.lint.linter import LintConfig
from tests.devtools.lint.conftest import LintFiles

HEAD = """
from framework import ApplicationWorker, Deduplicate, DeferOnHealth, Discard, IterableWorker, LimitedCapacityWorker, RetryLater, flags
from framework.context import bound
from framework.sharding import router
from workers.base import TeamWorker
"""

CASES = {
    "SEW002": """
class Tick(TeamWorker):
    queue_namespace = "cronjob"
    def perform(self) -> None:
        self.helper()
        Other.set(context={"a": 1}).perform_async(1)
        Other.set(retry=1).set(context={"a": 1}).set(retry=2).perform_async(1)
        Other.set(**options).perform_async(1)
        Other.set(retry=1).perform_async(1)  # here
        Other.other(context=1).perform_async(1)  # here
        with other(1): Other.perform_in(1, 2)  # here
        with bound(a=1): later = lambda: Other.perform_async(1)  # here
    async def helper(self) -> None:
        Other.perform_at(1, 2)  # here
        async with gate(), bound(a=1): Other.perform_at(1, 2)
class Other(TeamWorker):
    def perform(self, x: int) -> None:
        Other.perform_async(x)
""",
    "SEW003": """
def push(w: type[TeamWorker]) -> None:
    w.perform_bulk_for([1], arguments=w.arguments)  # here
    w.perform_bulk_for([1], arguments=w.arguments, context=dict)
    w.perform_bulk_in(1, [(1,)])  # here
    with bound(a=1): w.perform_bulk([(1,)])
    w.perform_async(1)
""",
    "SEW004": """
import random as dice
import uuid
class A(TeamWorker):
    ROWS = tables[0]()
    _SEED = uuid.uuid4().hex  # here
    concurrency_limit = lambda: dice.randint(1, 9)
    weight = min(3, dice.choice([1, 2]))  # here
    def perform(self) -> None: dice.random()
""",
    "SEW005": """
class A(ApplicationWorker): # here
    def perform(self) -> None: ...
class B(TeamWorker):
    data_consistency = "always"  # here
    def perform(self) -> None: ...
class C(ApplicationWorker, abstract=True): ...
class D(C): # here
    def perform(self) -> None: ...
class E(C):
    data_consistency = "delayed"
    def perform(self) -> None: ...
""",
    "SEW006": """
class A(TeamWorker):
    deduplicate = Deduplicate("none")
    def perform(self) -> None: ...
class B(A):
    deduplicate = Deduplicate(strategy="until_executed")  # here
class C(A):
    deduplicate = Deduplicate(**OPTIONS)
class G(A):
    deduplicate = Deduplicate(STRATEGY)  # here
class H(A):
    deduplicate = Deduplicate()  # here
class D(A):
    deduplicate = None
class E(A):
    data_consistency = "always"
    deduplicate = Deduplicate()
class F(A):
    deduplicate = Deduplicate(including_scheduled=False)
class I(A):
    deduplicate = Deduplicate("debounce", window=WINDOW)
""",
    "SEW007": """
class A(TeamWorker):
    urgency = "high"
    defer_on_health = None
    def perform(self) -> None: ...
class B(A):
    urgency = "throttled"
    defer_on_health = None  # here
class C(ApplicationWorker): # here
    def perform(self) -> None: ...
""",
    "SEW008": """
class PlainWorker: # here
    def perform(self) -> None: ...
class Mixed:
    def perform(self) -> None: ...
class Plain:
    def perform(self) -> None: ...
class FarmWorker:
    name = "Jo"
class UnknownWorker(Elsewhere):
    def perform(self) -> None: ...
class MixinWorker:
    def perform(self) -> None: ...
class RealWorker(MixinWorker, TeamWorker): ...
import celery # here
from rq import Queue # here
import rqlite
""",
    "SEW009": """
class A(TeamWorker):
    queue = None
    retry_queue = "slow"
    def perform(self) -> None: ...
def push() -> None:
    A.set(queue="q").perform_async()  # here
    A.set(queue="q").perform_bulk([])  # here
    A.set(retry=1).perform_async()
    canvas.set(queue="q").draw()
    config.set(queue="q")
""",
    "SEW010": """
def f(client: object) -> None:
    client.zadd("schedule", {})  # here
    client.delete(f"queue:{name}")  # here
    client.sadd("aw:status:1", 1)  # here
    client.zadd("schedules", {})
    client.zadd(f"{name}:queue", {})
    client.get("queue:x")
    client.zcard()
    client.lpush(name, 1)
    with router.via_shard("main") as pool: pool.zcard("schedule")
    with lock("x"): client.zcard("schedule")  # here
""",
    "SEW011": """
import framework
import framework.status
import framework.store # here
import framework_extras
from framework import boot
from framework import wiring # here
from framework.types import Payload
from framework import middleware
from framework import databases, health, pause, throttling
from framework.health import register
from framework.admin import search
from framework.paused import x # here
from framework.wiring.client import Enqueuer # here
from framework.errors import PushError
""",
    "SEW012": """
import os
import redis
import redis.asyncio as aio
def f() -> None:
    redis.Redis.from_url(os.getenv("REDIS_URL"))  # here
    redis.from_url(os.environ["REDIS_URL"])  # here
    aio.Redis.from_url(os.environ["REDIS_URL"])  # here
    redis.Redis()
    redis.Redis.from_url(os.environ["CACHE_URL"])
    (lambda url: url)("REDIS_URL")
    os.getenv("REDIS_URL")
""",
    "SEW014": """
class A(TeamWorker):
    def perform(self, user_id: int) -> None:
        User.objects.get(pk=user_id)  # here
        User.objects.get(pk=1)
        self.cache.get(user_id)
        session.get_one(User, user_id)  # here
        session.query(User).filter_by(id=user_id).one()  # here
        session.scalars(select(User).where(User.id == user_id)).one_or_none()
        session.execute(select(count()).where(User.id == user_id)).scalar_one()  # here
        session.execute(select(User).where(User.id == user_id).count()).scalar_one()
        users(user_id).one()
        try:
            User.objects.get(pk=user_id)
        except User.DoesNotExist:
            return
        try:
            get_object_or_404(User, user_id)  # here
        finally:
            self.close()
    def perform_v1(self, user_id: int) -> None:
        User.objects.get(pk=user_id)  # here
    def perform_visit(self, user_id: int) -> None:
        User.objects.get(pk=user_id)
def perform(user_id: int) -> None:
    User.objects.get(pk=user_id)
""",
    "SEW015": """
A = Deduplicate(feature_flag=None)
B = Deduplicate(feature_flag="a")
C = Deduplicate(feature_flag=NAME)  # here
D = Other(feature_flag=NAME)
E = shop.Deduplicate(feature_flag=NAME)
F = flags.enabled("a", key=NAME)
G = flags.enabled(f"a_{NAME}")  # here
H = flags.aenabled(name=NAME)  # here
I = shop.flags.enabled(NAME)
J = flags.set(NAME)
""",
    "SEW018": """
class A(TeamWorker):
    _retries = 3
    LIMIT = 3
    area = property(len)
    colour = "{0}"  # here
    retries = 3  # here
    retyr = compute()  # here
    other = compute()
    urgncy: "high"  # here
    anything: str
    tags = ("a b",)  # here
    weight = True  # here
    def perform(self) -> None: ...
class B(TeamWorker):
    data_consistency = "delayed"  # here
    retry = 0
    def perform(self) -> None: ...
class C(TeamWorker):
    data_consistency = "delayed"
    retry = 1
    urgency = "low"
    resource_boundary = "memory"
    def perform(self) -> None: ...
class D(C):
    urgency = "high"  # here
class E(TeamWorker):
    urgency = "high"
    has_external_dependencies = True
    def perform(self) -> None: ...
""",
    "SEW019": """
import requests
class A(TeamWorker):
    urgency = "high"  # here
    has_external_dependencies = True
    def perform(self) -> None: ...
class B(TeamWorker):
    urgency = "high"
    has_external_dependencies = False
    def perform(self) -> None: requests.get("x")
class C(TeamWorker):
    urgency = "high"
    def perform(self) -> None: ...
""",
    "SEW020": """
import httpx
from urllib.parse import urlencode
class A(TeamWorker):
    def perform(self) -> None: urlencode({})
class B(TeamWorker):
    def perform(self) -> None: outer()
def outer() -> None:
    inner()
    outer()
def inner() -> None:
    httpx.get("x")  # here
class C(TeamWorker):
    has_external_dependencies = False
    def perform(self) -> None: httpx.get("x")
class D(Unknown, TeamWorker):
    def perform(self) -> None: httpx.get("x")
def not_reached() -> None: httpx.get("x")
""",
    "SEW021": """
class A(TeamWorker):
    urgency = "throttled"
    concurrency_limit = 0  # here
    def perform(self) -> None: ...
class B(A):
    concurrency_limit = -1
class C(A):
    concurrency_limit = lambda: None
class D(A):
    max_concurrency_limit_percentage = 0.5
class E(TeamWorker): # here
    has_external_dependencies = True
    def perform(self) -> None: ...
class F(TeamWorker):
    resource_boundary = "cpu"
    def perform(self) -> None: ...
class Drain(LimitedCapacityWorker):
    feature_category = "global_search"
    has_external_dependencies = True
    max_running_jobs = 3
    def perform_work(self) -> None: ...
    def remaining_work_count(self) -> int: ...
class Flood(LimitedCapacityWorker):  # here
    has_external_dependencies = True
""",
    "SEW022": """
import datetime as dt
import enum
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Optional, Tuple
from uuid import UUID
class Colour(enum.Enum):
    RED = 1
class A(TeamWorker):
    def perform(
        self,
        a: dt.datetime,  # here
        b: "list[UUID]",  # here
        c: Optional[Path],  # here
        d: Annotated[int, Path],
        e: Literal["datetime.datetime"],
        f: int | dict[str, Tuple[int]],  # here
        g: Colour,  # here
        plain,
        h: "not a type",
        k: dict[int, str],  # here
        l: "list[dict[float, str]] | None",  # here
        m: Mapping[Literal["x", 1], str],  # here
        n: dict[str, typing.Dict[bool | str, int]],  # here
        o: dict[Annotated[str, 5], int],
        p: dict[Literal["x"], dict[str, int]],
        q: list[int],
        *i: bytes,  # here
        **j: int,  # here
    ) -> Path: ...
    def helper(self, a: dt.datetime) -> None: ...
class B(A):
    strict_arguments = "warn"
    def perform(self, a: dt.datetime) -> None: ...
""",
    "SEW023": """
from typing import NewType, TypedDict
from shop.models import Order, find_order
from shop.model import Row
from shop.views import View
class Facts(TypedDict):
    id: int
class More(Facts): ...
class User: ...
UserId = NewType("UserId", int)
class A(TeamWorker):
    def perform(
        self,
        a: Facts,
        b: list[More],
        c: UserId,
        d: View,
        e: Order | None,  # here
        f: "list[Row]",  # here
        g: User,  # here
    ) -> User: ...
""",
    "SEW024": """
class A(TeamWorker):
    queue_namespace = "cronjob"
    retry = 4  # here
    def perform(self) -> None: ...
class B(A):
    retry = 3
class C(A):
    retry = 0
class D(TeamWorker):
    queue_namespace = "cronjob"
    retry_for = 60
    def perform(self) -> None: ...
class E(A):
    retry = True  # here
class F(A):
    retry = False
class G(TeamWorker):
    def perform(self) -> None: ...
class H(A):
    retry = compute()
""",
    "SEW025": """
import asyncio
from time import sleep
def wait() -> None: sleep(1)
class Patient:
    def rest(self) -> None: sleep(1)  # here
class A(Patient, TeamWorker):
    def perform(self) -> None: sleep(1)  # here
    async def perform_v0(self) -> None: await asyncio.sleep(1)
class Other:
    def rest(self) -> None: sleep(1)
""",
    "SEW026": """
import requests
import socket
from http import client
from urllib.request import urlopen
def f() -> None:
    requests.get("x")  # here
    requests.get("x", 10, 20, 30)  # here
    requests.get("x", timeout=1)
    requests.get("x", **options)
    requests.get(*options)
    requests.Session()
    client.HTTPSConnection("x", 443)  # here
    client.HTTPSConnection("x", 443, 10)
    socket.create_connection(("x", 1))  # here
    socket.create_connection(("x", 1), 10)
    urlopen("x")  # here
""",
    "SEW027": """
from framework import BusinessError
from framework.errors import FlowControl, FrameworkError
class A(TeamWorker):
    def perform(self) -> None:
        try: ...
        except: # here
            pass
        try: ...
        except (OSError, BaseException): # here
            pass
        try: ...
        except BaseException:
            raise
        try: ...
        except Exception: pass
        try: raise RetryLater(1)
        except ValueError: pass
        except FrameworkError: pass
        try: raise RetryLater(1)
        except FlowControl: pass # here
        try: raise BusinessError("no")
        except ValueError: pass
        except FrameworkError: pass # here
        try: raise RetryLater
        except RetryLater: raise
        except Exception: pass
        try: raise Discard("x")
        except Discard: pass
        except Exception: pass
        try:
            raise
        except Exception: pass
        try: raise ValueError
        except Exception: pass
        try: raise Discard("x")
        except Exception: raise
        except BaseException: pass # here
def f() -> None:
    try: ...
    except BaseException: pass
""",
    "SEW028": """
def f(w: type[TeamWorker]) -> None:
    for x in y:
        w.perform_async(x)  # here
    for x in y:
        print(x)
        w.perform_async(x)
    for x in y:
        w.perform_async(x)
    else:
        print(x)
    for x in y:
        print(x)
    [print(x) for x in y]
    while True:
        w.perform_async(1)
    [w.perform_in(1, x) for x in y]  # here
    [x for x in w.perform_async(1)]
    return list(w.perform_async(x) for x in y)  # here
async def g(w: type[TeamWorker]) -> None:
    for x in y:
        await w.aperform_async(x)  # here
    await w.aperform_async(1)
""",
    "SEW029": """
class A(TeamWorker):
    loggable_arguments = ("tokens_used", "page", "emailed")
    def perform(self, tokens_used: int) -> None: ...
class B(A):
    loggable_arguments = ("api_key",)  # here
class C(A):
    loggable_arguments = (3, "user_email")  # here
class D(B): ...
""",
    "SEW030": """
def f(w: type[TeamWorker], session: object) -> None:
    with transaction.atomic(): w.perform_async(1)  # here
    with lock, session.begin_nested() as x: w.perform_bulk([])  # here
    with session.begin():
        on_commit(lambda: w.perform_async(1))
        def later() -> None: w.perform_async(1)
        w.perform_inline(1)
    with begin(), managers[0](): w.perform_async(1)
    with session.connect(): w.perform_async(1)
    w.perform_async(1)
""",
    "SEW038": """
import framework
async def f(w: type[TeamWorker]) -> None:
    await w.perform_async(1)  # here
    await w.set(retry=1).perform_in(5, 1)  # here
    await w.perform_bulk([(1,)])  # here
    await w.perform_inline(1)  # here
    await framework.enqueue("Other", [1])  # here
    await w.aperform_async(1)
    await queue.enqueue(1)
    w.perform_async(1)
    await w.call(1)
""",
    "SEW037": """
class A(TeamWorker, IterableWorker):
    def build_enumerator(self, cursor): ...
    def each_iteration(self, item): ...
class B(A):
    def perform(self) -> None: ...  # here
class C(A):
    def build_enumerator(self, days: int, *, cursor): ...
class D(A):
    def build_enumerator(self, days: int): ...  # here
class E(TeamWorker, IterableWorker):  # here
    def build_enumerator(self, *, cursor): ...
class F(TeamWorker, IterableWorker, abstract=True): ...
class G(TeamWorker):
    def perform(self) -> None: ...
    def build_enumerator(self): ...
""",
}


@pytest.mark.parametrize(("code", "text"), CASES.items(), ids=CASES)
def test_rule_finds_exactly_the_marked_lines(code: str, text: str, lint_files: LintFiles, tmp_path):
    text = HEAD + text
    wanted = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# here")}
    found = lint_files(
        {"workers/x.py": text}, "workers/x.py", config=LintConfig(tmp_path, select=frozenset({code, "SEW100"}))
    )
    assert {one.line for one in found} == wanted
    assert {one.code for one in found} <= {code}
