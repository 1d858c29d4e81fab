"""Profile the runs of jobs."""
