"""Hold the jobs of a class while an operator or a strategy of the application pauses it."""
