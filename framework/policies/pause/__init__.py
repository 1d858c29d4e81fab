"""Hold the jobs of paused classes, and return them to their queues in order when the pause ends."""
