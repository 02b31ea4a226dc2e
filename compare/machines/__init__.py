"""One run over several machines, and one contender in several processes, on one machine or on several."""
