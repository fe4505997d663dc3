"""Moves predictions through their lives: the one owner, the dispatcher, the engine process."""
