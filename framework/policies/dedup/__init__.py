"""Equal jobs: what becomes of a job's lock as its run begins. The lock is taken at the push (``push/deduplication.py``)."""
