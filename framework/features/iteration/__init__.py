"""Run a long job item by item."""
