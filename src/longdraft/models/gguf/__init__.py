"""Models stored as GGUF files: `file` reads the container, `blocks` its tensor types, `model` and `tokenizer` use it."""
