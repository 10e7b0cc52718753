"""How a model is read while it runs: attention, shares and tokens of its blocks, from outside."""
