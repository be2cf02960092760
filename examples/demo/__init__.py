"""`make demo`: a load while a worker, the server and PostgreSQL are killed; the database says what was lost."""
