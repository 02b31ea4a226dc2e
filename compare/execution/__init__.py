"""The parent's side of a run: phases, children, timed rounds, telemetry and judging."""
