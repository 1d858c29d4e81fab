"""Push jobs: from a checked call to a payload in a Redis list or set, in one atomic write to one shard."""
