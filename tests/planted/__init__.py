"""Planted bugs: small changes to one side. The certificate must catch each."""
