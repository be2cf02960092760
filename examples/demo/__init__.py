"""`make demo`: a server, a worker and a few thousand jobs of several kinds, on an embedded PostgreSQL."""
