"""Step 7 of a job's way: what becomes of it. Needs the payload only; the class helps when there is one."""
