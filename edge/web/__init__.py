"""The web pages: a prediction's own, and the playground."""
