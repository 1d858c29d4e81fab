"""Push jobs at the times of a schedule."""
