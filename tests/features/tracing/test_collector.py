"""Check one trace as a collector gets it: of a FastAPI request, its jobs in real worker processes, and their callback."""

import pytest

from tests.harness import Site
from tests.servers.otlp import collector

SDK = """
import os

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), 3_600_000)]))
provider = TracerProvider()
# One without a thread, so that processes of isolated jobs are forked.
kind = SimpleSpanProcessor if "SIMPLE" in os.environ else BatchSpanProcessor
provider.add_span_processor(kind(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
"""

JOBS = """
import spans
from framework import ApplicationWorker, IterableWorker
from framework.context import current
from opentelemetry import trace

tracer = trace.get_tracer("shop")


class Base(ApplicationWorker, abstract=True):
    feature_category = "not_owned"
    queue = "default"


class FlakyWorker(Base):
    retry_delay = (1,)

    def perform(self, order_id: int) -> None:
        with tracer.start_as_current_span("charge the card"):
            if "retry_count" not in self._aw_job:
                raise ConnectionError("the bank hung up")


class AsyncWorker(Base):
    async def perform(self, order_id: int) -> None:
        with tracer.start_as_current_span("await"):
            pass
        self.logger.info("in the job")


class IsolatedWorker(Base):
    isolation = "process"

    def perform(self, order_id: int) -> None:
        with tracer.start_as_current_span("isolated work"):
            AsyncWorker.perform_async(order_id)


class ItemsWorker(IterableWorker, Base):
    def build_enumerator(self, order_id: int, *, cursor):
        return ((item, item) for item in range(cursor or 1, 3))

    def each_iteration(self, item: int, order_id: int) -> None:
        with tracer.start_as_current_span(f"item {item}"):
            pass


class ThanksWorker(Base):
    def perform(self, order_id: int) -> None:
        ItemsWorker.perform_async(order_id)
"""

APP = """
import spans
from fastapi import FastAPI
from jobs import AsyncWorker, FlakyWorker, ThanksWorker
from framework.batches import Batch
from framework.integrations.starlette import RequestContext

app = FastAPI()
app.add_middleware(RequestContext)


@app.post("/orders/{order_id}")
def order(order_id: int) -> dict[str, str]:
    batch = Batch()
    batch.on_success(ThanksWorker, order_id)
    with batch.jobs():
        FlakyWorker.perform_async(order_id)
        AsyncWorker.perform_async(order_id)
    return {}


"""


REQUEST = """
import app, spans
from fastapi.testclient import TestClient

headers = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "X-Request-ID": "req-1"}
assert TestClient(app.app).post("/orders/7", headers=headers).status_code == 200
spans.provider.force_flush()
"""


@pytest.fixture
def shop(redis, redis_url, short_path):
    made = Site(short_path, redis_url, warm=True)
    made.write("application.yml", {"tracing": {"opentelemetry": True}})
    for name, text in {"spans": SDK, "jobs": JOBS, "app": APP}.items():
        (short_path / f"{name}.py").write_text(text)
    yield made
    made.close()


TREE = """
POST /orders/{order_id} [web, server]
  fastapi.dependencies [web, internal]
  fastapi.endpoint [web, internal]
    create default ThanksWorker [web, producer]
      process default ThanksWorker [worker, consumer]
        send default ItemsWorker [worker, producer]
          process default ItemsWorker [worker, consumer]
            item 1 [worker, internal]
            item 2 [worker, internal]
    create default FlakyWorker [web, producer]
      process default FlakyWorker [worker, consumer], error
        charge the card [worker, internal], error
      process default FlakyWorker [worker, consumer], link to process default
        charge the card [worker, internal]
    create default AsyncWorker [web, producer]
      process default AsyncWorker [worker, consumer]
        await [worker, internal]
  fastapi.serialization [web, internal]
"""


def test_collector_gets_one_trace_from_request_to_callback(shop):
    with collector() as received:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.url, "OTEL_SERVICE_NAME": "worker"}
        process = shop.worker("-q", "default", **environment).ready()
        done = shop.run("-c", REQUEST, **{**environment, "OTEL_SERVICE_NAME": "web"})
        assert done.returncode == 0, done.stderr
        process.line(**{"class": "ItemsWorker", "job_status": "done"})
        # The end of the process sends the last spans.
        assert process.end() == 0
    assert received.tree("a" * 32) == TREE.strip()
    assert {one.trace_id for one in received.spans} == {"a" * 32}
    ids = {one.span_id for one in received.spans if one.kind == "consumer"}
    starts = process.find(job_status="start")
    assert {line["trace_id"] for line in [*starts, *process.find(message="in the job")]} == {"a" * 32}
    assert {line["span_id"] for line in starts} == ids
    assert process.line(message="in the job")["span_id"] in ids
    made = {one.attributes["messaging.message.id"] for one in received.spans if one.name == "create default"}
    assert made < {line["jid"] for line in starts}
    (failed,) = process.find(job_status="fail")
    assert [one.span_id for one in received.spans if one.is_error and one.kind == "consumer"] == [failed["span_id"]]
    runs = [
        (one.get("error.type"), point.as_int) for one, point in received.metrics["messaging.client.consumed.messages"]
    ]
    assert sorted(runs, key=str) == [("ConnectionError", 1), (None, 4)]
    assert sum(point.count for _, point in received.metrics["messaging.process.duration"]) == 5


def test_collector_gets_the_span_of_an_isolated_delayed_job(shop):
    with collector() as received:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.url, "OTEL_SERVICE_NAME": "shop", "SIMPLE": "1"}
        process = shop.worker("-q", "default", **environment).ready()
        done = shop.run("-c", "import jobs; jobs.IsolatedWorker.perform_in(0.05, 7)", **environment)
        assert done.returncode == 0, done.stderr
        process.line(**{"class": "AsyncWorker", "job_status": "done"})
        assert process.end() == 0
    (push,) = [one for one in received.spans if one.name == "send default" and not one.parent_id]
    (run,) = [
        one
        for one in received.spans
        if one.attributes.get("messaging.sidekiq.job_class") == "IsolatedWorker" and one is not push
    ]
    assert run.links == [push.span_id]
    assert run.trace_id != push.trace_id
    assert (
        received.tree(run.trace_id)
        == """
process default IsolatedWorker [shop, consumer], link to another trace
  isolated work [shop, internal]
    send default AsyncWorker [shop, producer]
      process default AsyncWorker [shop, consumer]
        await [shop, internal]
""".strip()
    )
