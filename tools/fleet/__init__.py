"""Many servings before one operator: what that costs, and whether it grows with time."""
