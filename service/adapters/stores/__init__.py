"""Stores, one technology a module."""
