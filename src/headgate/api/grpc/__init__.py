"""The gRPC skin: servicers, codec (wire ⇄ domain), the table of statuses."""
