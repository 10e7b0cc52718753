"""The parts a method is made of: masks, shares, extra losses, hidden mixing, pairings."""
