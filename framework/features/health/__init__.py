"""Defer jobs whose database is not healthy."""
