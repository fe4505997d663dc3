"""The engine's own process: `python -m service.engine_worker --fd N`, started by `EngineProcess`.

It runs one engine adapter and everything that turns its pieces into final text: preparing prompts,
stop strings, character boundaries. It talks to the service in the frames of `engine_frames`.
"""
