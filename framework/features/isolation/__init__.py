"""Run each job of a class in a process of its own."""
