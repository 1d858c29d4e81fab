"""Recover the jobs of dead processes: find such a process, decide about each of its jobs, and return them to their queues."""
