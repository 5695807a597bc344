"""One tree from several sources: a model drafter's draft, filled with what the text continues."""
