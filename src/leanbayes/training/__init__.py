"""Training: the ELBO, the one loop (`fit`), schedules, callbacks and checkpoints. Importing it costs nothing."""
