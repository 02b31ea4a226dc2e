"""Several machines and several processes of one contender."""
