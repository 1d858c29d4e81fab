"""Feature flags: what they say, and where they are stored."""
