"""What an evaluation looks like: tables for the terminal, figures, one self-contained HTML page."""
