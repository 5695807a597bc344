"""What a suite asks a model: tasks built from what a machine has, or read from a file."""
