"""Defer or drop jobs: while an operators' flag says so, or while a database is overloaded."""
