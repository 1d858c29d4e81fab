"""``jobs story``: the chain of jobs of one request or job, from log lines or from the database of tasks."""
