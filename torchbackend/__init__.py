"""The PyTorch side: torch.nn models, torch.optim updates, autocast and torch.compile."""
