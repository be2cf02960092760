"""A shop with FastAPI and SQLAlchemy whose background work runs in Headgate: eleven handlers, and their tests."""
