"""A user's own pair of models: which layer of one is which layer of the other, and where they differ."""
