"""Long randomised tests, run by `python -m tests.soak`; a short sample of each part runs with the ordinary tests."""
