"""A load tool that others made for OpenAI's API, unchanged, against service and edge on the demo model."""
