"""The edge's side of the gRPC contract: the only package that knows gRPC and the generated code."""
