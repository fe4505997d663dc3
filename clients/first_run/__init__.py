"""`make run`: from a fresh checkout to the first streamed prediction, in one command.

Owns what the terminal shows and the order of the steps: ports, model, processes, readiness, one
prediction, what to try next. Knows the service and the edge only as commands and by HTTP.
"""
