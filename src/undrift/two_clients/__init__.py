"""Client drift as a picture: two clients with quadratic losses in the plane."""
