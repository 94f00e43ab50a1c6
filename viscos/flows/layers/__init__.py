"""Bijections that flows are made of, one subject each."""
