"""What talks to Tailrace from the outside: the first run, and a folder per language."""
