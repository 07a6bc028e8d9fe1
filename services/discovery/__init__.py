"""Discovery, on every node: which devices there are, and how they are."""
