"""Keep pushes in files of the producer while Redis is down, and replay them."""
