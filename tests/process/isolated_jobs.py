"""Isolated jobs in a module of an application, with a server middleware and, if told so, a thread that starts at the import."""

import os
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jobs

from framework import middleware

tenant = ContextVar("tenant", default="unset")
capsule = ContextVar("capsule", default="default")
if os.environ.get("IMPORT_STARTS_THREAD"):
    threading.Thread(target=threading.Event().wait, daemon=True).start()


class TenantMiddleware:
    """Prepare something that the job uses, in the process of the job."""

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Iterator[None]:
        if job["args"] == ["stop"]:
            return
        token = tenant.set(f"{queue} {os.getpid()}")
        try:
            yield
        finally:
            if tenant.get() == "set by the job":
                jobs.prove("after")
            tenant.reset(token)


middleware.server.add(TenantMiddleware)


class SlowMiddleware:
    """Mark the jobs of the capsule ``slow``."""

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Iterator[None]:
        capsule.set("slow")
        yield


middleware.capsule("slow").add(SlowMiddleware)


class CapsuleWorker(jobs.Base):
    isolation = "process"

    def perform(self) -> None:
        jobs.prove("parent", os.getppid())
        jobs.prove("capsule", capsule.get())


class AsyncTenantWorker(jobs.Base):
    isolation = "process"

    async def perform(self) -> None:
        jobs.prove("tenant", tenant.get() == f"default {os.getpid()}")
        tenant.set("set by the job")


class TenantWorker(jobs.Base):
    isolation = "process"

    def perform(self, word: str) -> None:
        jobs.prove("tenant", tenant.get() == f"default {os.getpid()}")
        jobs.NoopWorker.perform_async("child")
        print("a print in a process of its own")  # noqa: T201 - on purpose
        if word == "wait":
            jobs.prove("pid", os.getpid())
            time.sleep(600)
