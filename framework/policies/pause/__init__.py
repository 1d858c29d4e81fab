"""Pauses: jobs of a class are parked while a strategy, or an operator, says so, and go back in order afterwards."""
