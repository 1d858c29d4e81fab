"""Hold the tags of the templates of the app."""
