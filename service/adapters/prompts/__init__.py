"""Prompts to token ids: chat templates and special tokens, the same for every engine."""
