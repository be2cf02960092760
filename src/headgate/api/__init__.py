"""Skins: what the outside speaks. A skin translates, delegates and decides nothing."""
