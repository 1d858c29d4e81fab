"""Write to one of several Redis servers. A shard is one whole Sidekiq data model; its pool is always passed as an argument."""
