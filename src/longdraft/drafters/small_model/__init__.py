"""A separate small language model as the drafter."""
