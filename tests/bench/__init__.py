"""What ``scripts/bench`` is made of. ``jobs`` holds the contestants' own programs, which run in environments of their own."""
