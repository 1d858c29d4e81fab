"""One worker process: its threads, its heart, its signals, its end."""
