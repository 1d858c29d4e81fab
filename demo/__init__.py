"""What ``scripts/demo`` is made of; commands that are one file need no such folder."""
