"""The commands of the development tools, which ``application-worker`` loads by name."""
