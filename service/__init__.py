"""The Tailrace service: owns predictions and runs engines behind gRPC."""
