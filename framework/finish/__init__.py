"""Step 7 of a job: settle its outcome. Needs only the payload; the class helps if it is known."""
