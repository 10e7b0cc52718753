"""Training: from a dataset to a trained model, in a run that survives interruptions."""
