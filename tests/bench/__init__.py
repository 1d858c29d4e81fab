"""Implement ``scripts/bench``. ``jobs`` holds the contestants' own programs, which run in environments of their own."""
