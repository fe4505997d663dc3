"""The HTTP edge: stateless, speaks gRPC to the service and the client dialects to the world."""
