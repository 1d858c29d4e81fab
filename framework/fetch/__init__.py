"""Step 5 of a job: move it from its queue to the working list of a process, and out of it at its end."""
