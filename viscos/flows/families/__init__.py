"""Flows by name: what makes each, from the shape of an item."""
