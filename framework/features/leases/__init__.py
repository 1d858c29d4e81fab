"""Hold a lease, and run one job of a class at a time."""
