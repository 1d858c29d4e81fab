"""The second of the three jobs: one file."""

import time

from framework import ApplicationWorker
from framework.types import Payload
from workers.code_index.analysis import Finding, Unparsable, analyse
from workers.code_index.build_report_worker import BuildReportWorker
from workers.code_index.index import this_process_index
from workers.code_index.printable_text import printable


class IndexFileWorker(ApplicationWorker):
    """Measure one Python file of a run and write its row; the last one asks for the report."""

    feature_category = "source_code_analysis"
    urgency = "throttled"
    data_consistency = "sticky"
    resource_boundary = "cpu"
    idempotent = True
    concurrency_limit = None  # SEW021: each reads one file, so as many may run as there are processors
    defer_on_health = None  # SEW007: the index has a database of its own, on which no user waits
    retry = 3
    loggable_arguments = ("run_id",)

    def perform(self, run_id: str, number: int) -> None:
        index = this_process_index()
        path = index.key_path(run_id, number)
        started, cpu_started = time.perf_counter(), time.thread_time()
        finding = analyse(path)
        cpu_s, duration_s = time.thread_time() - cpu_started, time.perf_counter() - started
        # A file that does not parse is a finding of this job: it gets a row with its reason, and the job is done.
        if isinstance(finding, Unparsable):
            self.log_extra(refused=finding.kind)
        record(run_id, number, finding, cpu_s=cpu_s, duration_s=duration_s)

    @classmethod
    def retries_exhausted(cls, job: Payload, error: Exception) -> None:
        # A file whose job failed to the end must not block the report: it is listed as failed.
        run_id, number = job["args"]
        record(run_id, number, Unparsable("gave_up", printable(f"{type(error).__name__}: {error}")))

    @classmethod
    def interruptions_exhausted(cls, job: Payload) -> None:
        # A file on which the interpreter itself dies, each time.
        run_id, number = job["args"]
        record(run_id, number, Unparsable("gave_up", "the process died on it again and again"))


def record(run_id: str, number: int, finding: Finding, *, cpu_s: float = 0.0, duration_s: float = 0.0) -> None:
    """Write ``finding`` into the file's row, and push the report job after the last one.

    After the commit, never before: see the effects of a crash in ``index``.
    """
    if this_process_index().record_result(run_id, number, finding, cpu_s=cpu_s, duration_s=duration_s):
        BuildReportWorker.perform_async(run_id)
