"""Deduplicate equal jobs: the push takes the lock, the run renews or releases it."""
