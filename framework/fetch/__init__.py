"""Step 5 of a job's way: from a list into this process's custody, atomically, and out of a dead process's."""
