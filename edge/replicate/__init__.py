"""The Replicate-compatible prediction API."""
