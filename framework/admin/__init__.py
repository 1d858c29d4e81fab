"""Inspect the jobs of a shard, and release those that are held: functions of the shard's client, in bounded steps."""
