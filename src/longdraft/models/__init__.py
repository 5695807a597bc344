"""Language models: a Transformers model with its weights and its backend."""
