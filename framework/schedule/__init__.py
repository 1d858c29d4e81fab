"""Jobs that wait for a time: retries and scheduled jobs come back to their queues when they are due."""
