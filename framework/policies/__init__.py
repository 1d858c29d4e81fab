"""What bends the way of a job: locks, limits, pauses, deferrals, replicas. One folder each; none knows another."""
