"""Move jobs that wait for a time (retries and scheduled jobs) to their queues when they are due."""
