"""A user's own pair of models: what each does in one traced pass, and which layer of one is which of the other."""
