"""Training a target, and the parts that drafters' training objectives share. Knows no drafter."""
