"""Data sets as objects: items, their units, masks, and what becomes of them in training; `sources` reads them."""
