"""Step 2 of a job's way: from a checked call to a payload on a list, in one atomic write to one shard."""
