"""Tailrace protocol packages."""
