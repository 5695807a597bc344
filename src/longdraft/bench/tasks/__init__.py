"""The tasks of a suite: built from what a machine has, or read from a file."""
