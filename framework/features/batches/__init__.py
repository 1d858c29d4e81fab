"""Group jobs, and push other jobs when they have ended."""
