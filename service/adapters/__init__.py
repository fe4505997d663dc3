"""Technology behind the ports."""
