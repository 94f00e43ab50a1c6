"""Solvers of the restricted equation, one method each; `viscos.roots` has them by name."""
