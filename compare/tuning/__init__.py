"""What a contender is: how it is written and called, its knobs, the named sets of them, and the variables it needs."""
