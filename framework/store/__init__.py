"""Redis itself: connections, scripts, the embedded server."""
