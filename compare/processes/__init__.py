"""The parent's side of its children: started, spoken to with deadlines, given jobs, and ended with all they started."""
