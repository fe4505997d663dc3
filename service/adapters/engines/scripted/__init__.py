"""An engine without a model: what it says is written in the prompt. For tests and measurements."""
