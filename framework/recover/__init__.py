"""Recover the jobs of dead processes: find such a process, judge its jobs, and return them to their queues."""
