"""Training: from a data set to a trained model, in a run that survives interruptions."""
