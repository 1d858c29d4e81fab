"""Define the workers of the interop tests. Ruby has classes of the same names, so either side can run the other's jobs."""

import json
import os
import time
from typing import Any

from pydantic import JsonValue
from redis import Redis

import framework
from framework import ApplicationWorker, active_job

WAIT_S = 60

if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def note(worker: str, *args: Any) -> None:
    with Redis.from_url(os.environ["PROOF_URL"]) as client:
        client.rpush("interop:python", json.dumps([worker, *args]))


class EchoWorker(ApplicationWorker):
    """Records its arguments."""

    feature_category = "not_owned"

    def perform(self, *args: JsonValue) -> None:
        note("EchoWorker", *args)


class PlainWorker(ApplicationWorker):
    """Runs in Ruby processes that decompress nothing."""

    feature_category = "not_owned"
    compress = False

    def perform(self, *args: JsonValue) -> None:
        note("PlainWorker", *args)


class StartWorker(ApplicationWorker):
    """Pushes a job of Ruby, in the trace of its own, to a queue that only Ruby serves."""

    feature_category = "not_owned"

    def perform(self) -> None:
        framework.enqueue("RelayWorker", ["EchoWorker"], queue="ruby")
        note("StartWorker")


class HandoverWorker(ApplicationWorker):
    """Always fails in Ruby, succeeds in Python."""

    feature_category = "not_owned"

    def perform(self, *args: JsonValue) -> None:
        note("HandoverWorker", *args)


class FailingWorker(ApplicationWorker):
    """Always fails in Python; Ruby has no such class."""

    feature_category = "not_owned"
    retry = 3
    backtrace = True

    def perform(self, reason: str) -> None:
        self._explain(reason)

    def _explain(self, reason: str) -> None:
        raise RuntimeError(reason)


class MendableWorker(ApplicationWorker):
    """Fails without retry until its cause is removed."""

    feature_category = "not_owned"
    retry = 0

    def perform(self, number: int) -> None:
        with Redis.from_url(os.environ["PROOF_URL"]) as client:
            repaired = client.exists("interop:mended")
        if not repaired:
            raise ValueError(f"{number} is broken")
        note("MendableWorker", number)


class WrappedWorker(ApplicationWorker):
    """Runs the jobs that Rails wrapped."""

    feature_category = "not_owned"
    wire_name = active_job.WRAPPER
    aliases = (active_job.WRAPPER_8,)

    def perform(self, job: dict[str, JsonValue]) -> None:
        wrapped = active_job.unwrap(job)
        note(wrapped.job_class, *wrapped.args, wrapped.kwargs)


class PatientWorker(ApplicationWorker):
    """Runs until it is cancelled."""

    feature_category = "not_owned"

    def perform(self, what: str) -> None:
        while not self.cancelled:
            time.sleep(0.01)
        note("PatientWorker", what)


class WaitingWorker(ApplicationWorker):
    """Runs until a value is pushed to its list."""

    feature_category = "not_owned"

    def perform(self, list_key: str) -> None:
        with Redis.from_url(os.environ["PROOF_URL"], socket_timeout=WAIT_S + 5) as client:
            client.rpush("interop:waiting", list_key)
            client.blpop([list_key], timeout=WAIT_S)
        note("WaitingWorker", list_key)
