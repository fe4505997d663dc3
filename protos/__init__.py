"""The contract both sides share: `.proto` sources and the Python generated beside them."""
