"""What is computed: a language model of Transformers with its weights and its backend."""
