"""Let operators switch things on and off while processes run: flags on classes, and flags that the application asks."""
