"""Concurrency limits: how many jobs of a class, of a queue, or of one tenant run at a time over all processes of a shard."""
