"""``top``: a live view of queues, processes and jobs. State, keys and drawing are pure; a session owns the terminal."""
