"""Other engines that decode the same prompts in the same run."""
