"""Let jobs read from a replica that shows what their push saw."""
