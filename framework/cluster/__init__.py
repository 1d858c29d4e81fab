"""Many processes: a parent that starts workers by command line, watches them, and replaces the dead."""
