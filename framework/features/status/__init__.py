"""Keep the states of jobs."""
