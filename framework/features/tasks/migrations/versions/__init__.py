"""Hold one file per migration, in the order of their numbers. A released migration never changes."""
