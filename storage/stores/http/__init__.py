"""HTTP/1.1 over asyncio for servers that are not trusted: bounded responses, no redirects."""
