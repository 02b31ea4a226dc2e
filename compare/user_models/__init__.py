"""Match the two models of a user, and explain where they differ."""
