"""Planted bugs: small changes to one side's meaning, each of which the certificate must catch."""
