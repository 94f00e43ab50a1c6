"""Continuous flows: velocity networks, Runge–Kutta methods, the steps of an integrator, and the flow of them."""
