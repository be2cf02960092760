"""Adapters for transports. An adapter translates, delegates and decides nothing."""
