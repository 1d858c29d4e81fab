"""Hold the commands of the app."""
