"""Step 1: what a worker is. Pure: no Redis, no SQL, no log lines; enqueueing goes through ``declare.port``."""
