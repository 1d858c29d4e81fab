"""Protect the stored arguments of jobs."""
