"""Run the steps of a workflow one after the other, each as a batch."""
