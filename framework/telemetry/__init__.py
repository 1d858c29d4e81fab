"""Structured logs, counters, and the context that travels with jobs."""
