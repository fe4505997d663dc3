"""OpenAI's API: chat completions, completions, responses, and the plain `/generate`."""
