"""Encrypt the arguments of jobs."""
