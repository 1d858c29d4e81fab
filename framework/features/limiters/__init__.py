"""Limit the rate of calls, across processes."""
