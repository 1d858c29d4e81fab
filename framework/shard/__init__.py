"""Step 4 of a job's way: which Redis. A shard is one whole Sidekiq data model; a pool is always an argument, never ambient."""
