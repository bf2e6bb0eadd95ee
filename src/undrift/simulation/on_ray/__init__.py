"""Clients on the actors of a Ray cluster (`place="ray"`): `cluster` starts Ray or connects to one, `actor` is what runs
there, `transport` is the driver's side, `wire` how tensors travel."""
