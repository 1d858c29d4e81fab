"""Implement ``scripts/demo``."""
