"""Every number that is reported: pure functions, the streams that carry them, and how sure they are."""
