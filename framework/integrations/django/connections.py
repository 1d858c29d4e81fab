"""Treat the database connections of a job as Django treats those of a request."""

from collections.abc import Generator
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections, reset_queries


class CloseConnections:
    """Close unusable and outdated connections (``CONN_MAX_AGE``) before and after each job. A server middleware.

    The calls that an ``async`` job makes through ``sync_to_async`` get a thread of their own, as in a request of Django's ASGI
    handler. So concurrent jobs share no connection, and its connections are closed at the end of the job.
    """

    def call(self, worker: Any, job: dict[str, Any], queue: str) -> Generator[None]:
        """Close connections, run the job, and close connections."""
        del job, queue
        # An inline job runs in the middle of its caller, for example between the rows of a server-side cursor.
        if worker._aw_run is None:
            yield
            return
        reset_queries()
        close_old_connections()
        own_thread = ThreadSensitiveContext()
        # The job has a context of its own, so nothing must be reset.
        SyncToAsync.thread_sensitive_context.set(own_thread)
        try:
            yield
        finally:
            executor = SyncToAsync.context_to_thread_executor.pop(own_thread, None)
            if executor is not None:
                executor.submit(connections.close_all)
                # Without a wait: a call of a cancelled job may still run in that thread.
                executor.shutdown(wait=False)
            close_old_connections()
