"""What is kept between rounds and on disk: client states, checkpoints, run directories."""
