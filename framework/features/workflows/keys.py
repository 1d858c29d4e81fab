"""Name the keys of workflows."""

WORKFLOWS = "aw:workflows"
"""ZSET of the ids of workflows; score: about when they expire, in seconds of Redis's clock."""


def workflow(workflow_id: str) -> str:
    """HASH with a TTL: the definition of a workflow and the states of its steps, and prefix of its lists ``:jobs:STEP``."""
    return f"aw:workflow:{workflow_id}"


def step_jobs(workflow_id: str, step: str) -> str:
    """LIST with a TTL: the arguments of a step's jobs, in parts that are written by one call each."""
    return f"{workflow(workflow_id)}:jobs:{step}"
