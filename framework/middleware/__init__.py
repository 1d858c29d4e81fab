"""The onion around every push and every run."""
