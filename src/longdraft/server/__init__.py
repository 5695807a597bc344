"""An OpenAI-compatible server over one session."""
