"""Step 6 of a job's way: run one fetched job and say what came of it."""
