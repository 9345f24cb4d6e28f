"""Three real vLLM workers behind nginx: how much of what could be reused is reused, by whoever decides."""
