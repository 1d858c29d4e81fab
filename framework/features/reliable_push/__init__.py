"""Keep pushes in a file while Redis is down, and push them later."""
