"""Step 6 of a job: run it and return its outcome."""
