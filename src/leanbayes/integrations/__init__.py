"""Other people's trainers, trackers and the Hub; each needs a package of its own, which is imported when it is used."""
