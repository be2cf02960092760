"""Dispatch: from demand to claims. So far the watermark; coordinator, links and writers come with the server."""
