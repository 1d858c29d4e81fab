"""Drop a push whose job waits already; run the job that takes its place with what the dropped ones have seen."""
