"""One worker process: its threads, its heartbeat, its signals, its end."""
