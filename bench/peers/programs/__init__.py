"""One program per library; see kit.py. Each is run by its path, in the environment of its library."""
