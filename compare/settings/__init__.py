"""What a user asks for: settings, contenders, tunings, checks and the plan."""
