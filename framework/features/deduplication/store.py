"""The script of a start under a lock. The rights of Redis users list it, so this file loads little."""

from framework.store.script import Script

START_LOCKED = Script("deduplication/start_locked", "time", "lock", "positions", "start_lock")

OUTLIVED = "sidekiq_jobs_lock_outlived_total"
"""The series of jobs that have waited in their queues for longer than their locks last."""
