"""Which method to use: an answer from what was measured and stored, never from what papers claim."""
