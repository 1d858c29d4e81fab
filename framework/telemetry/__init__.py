"""What leaves a trace: context that travels with jobs, structured logs."""
