"""The HTTP side that every dialect shares: server, middleware, bodies, problems, SSE responses."""
