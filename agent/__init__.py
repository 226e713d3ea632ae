"""One program, the tool-calling loop, and what it needs: tools, models, the conversation."""
