"""Keep the results of jobs."""
