"""Models as graphs for other runtimes: the samples, their averages and what the outputs mean in one file."""
