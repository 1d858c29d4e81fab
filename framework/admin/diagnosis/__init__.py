"""Find the likely causes of what an operator sees: why jobs wait, fail or do not come (``application-worker diagnose``)."""
