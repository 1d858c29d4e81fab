"""Workflows whose jobs write their runs to the server of the proofs."""

import os
from collections.abc import Iterator

from redis import Redis

from framework import ApplicationWorker
from framework.features.workflows import definition
from framework.workflows import Workflow, computed, computes_arguments

PROOFS = Redis.from_url(os.environ["PROOF_URL"])

JOBS = 20
definition._MOST_JOBS = 5  # so that a process may die between the parts of a step


class NumberedWorker(ApplicationWorker):
    """Note a run; fail for a negative number."""

    feature_category = "not_owned"
    queue = "default"
    retry = 0
    idempotent = True
    max_retries_after_interruption = -1

    def perform(self, workflow: int, step: str, number: int) -> None:
        PROOFS.rpush("proof:run", f"{workflow} {step} {number} {self.jid}")
        if number < 0:
            raise ValueError(number)


@computes_arguments
def numbered(workflow: int, step: str, failing: str) -> Iterator[tuple[int, str, int]]:
    """Yield the arguments of the jobs of a step, of which the last fails in the step ``failing``."""
    for number in range(1, JOBS):
        yield workflow, step, number
    yield workflow, step, -1 if step == failing else JOBS


def start(workflow: int) -> str:
    """Start a workflow: each third one fails in its first step, each third one in its second."""
    failing = ("import", "validate", "")[workflow % 3]
    return (
        Workflow(f"number {workflow}")
        .step("import", NumberedWorker, list(numbered(workflow, "import", failing)))
        .then("validate", NumberedWorker, computed(numbered, workflow, "validate", failing))
        .then("publish", NumberedWorker, [(workflow, "publish", 1)])
        .on_failure("report", NumberedWorker, [(workflow, "report", 1)])
        .then("clean", NumberedWorker, computed(numbered, workflow, "clean", ""))
        .start()
        .id
    )
