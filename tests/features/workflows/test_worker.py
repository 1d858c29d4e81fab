"""Test the part of workflows in a worker process."""

import subprocess
import sys

CODE = """
from framework.declare import registry
from framework.feature import features
for one in features():
    if one.worker is not None:
        one.worker.load()
print(registry.find("Framework::WorkflowStep"))
"""


def test_process_that_imports_no_workflow_runs_jobs_of_steps() -> None:
    run = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    assert "WorkflowStepWorker" in run.stdout
