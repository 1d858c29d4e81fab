"""Decide the queue and the shard of a worker's jobs. Pure: from rules and a declaration to a ``Route``."""
