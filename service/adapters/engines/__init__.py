"""Engines, one technology a module or folder."""
