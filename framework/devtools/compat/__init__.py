"""Compare two releases: each must understand the jobs of the other."""
