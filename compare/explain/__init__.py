"""Why one contender is slower: pure functions from profiles to tables, limits and findings."""
