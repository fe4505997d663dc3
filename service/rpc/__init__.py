"""The gRPC delivery: protobuf in, domain calls, protobuf out. Holds no decisions."""
