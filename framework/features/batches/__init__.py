"""Count the jobs of a batch, and push its callbacks when they have ended."""
