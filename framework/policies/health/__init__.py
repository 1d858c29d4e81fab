"""Defer jobs while a database is overloaded: indicators, a cache of their signals, and the policy."""
