"""Jobs whose failures quote secrets: the password of Redis, that of another URL, and the environment by name only."""

import logging
import os
import time
from datetime import timedelta

import jobs

from framework import Discard, RetryLater

REDIS, OTHER = os.environ["REDIS_URL"], os.environ["LEAK_URL"]


if "OTEL_EXPORTER_OTLP_ENDPOINT" in os.environ:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class LeakWorker(jobs.Base):
    def perform(self, number: str) -> None:
        raise RuntimeError(f"cannot reach {REDIS} nor {OTHER}")


class LeakCauseWorker(jobs.Base):
    def perform(self, number: str) -> None:
        try:
            raise ConnectionError(f"password is wrong for {OTHER}")
        except ConnectionError as error:
            raise ValueError("the database is away") from error


class LeakInProcessWorker(jobs.Base):
    isolation = "process"

    def perform(self, number: str) -> None:
        raise RuntimeError(f"cannot reach {REDIS} nor {OTHER}")


class LeakCrashWorker(jobs.Base):
    isolation = "process"

    def perform(self, number: str) -> None:
        os._exit(3)


class LeakTimeoutWorker(jobs.Base):
    timeout = timedelta(seconds=0.2)

    def perform(self, number: str) -> None:
        while True:
            time.sleep(0.01)


class LeakDiscardWorker(jobs.Base):
    def perform(self, number: str) -> None:
        raise Discard(f"cannot reach {OTHER}")


class LeakLaterWorker(jobs.Base):
    def perform(self, number: str) -> None:
        self.logger.warning("no answer", place=OTHER)
        logging.getLogger("driver").warning("cannot reach %s", OTHER)
        raise RetryLater(3600, f"cannot reach {OTHER}")


class LeakRecordedWorker(jobs.Base):
    """Quotes the URL in what it records, and fails with it; its context and an argument for log lines have a URL too."""

    track = True
    loggable_arguments = ("place",)

    def perform(self, number: str, place: str = "") -> None:
        self.record(f"cannot reach {OTHER}", place=OTHER)
        raise RuntimeError(f"cannot reach {OTHER}")


class LeakRunningWorker(jobs.Base):
    def perform(self, number: str) -> None:
        secret = number, REDIS, OTHER
        while not self.cancelled:
            time.sleep(0.01)
        del secret
