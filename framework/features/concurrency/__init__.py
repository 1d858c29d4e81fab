"""Limit how many jobs of a class, a queue or a scope run at the same time, over all processes of a shard."""
