"""Chat templates that requests bring along: what the engine finds depends on them."""

from typing import Final

PARTS: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
)
"""A template that goes through the parts itself."""
PLAIN: Final = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
DEVELOPER: Final = PLAIN + "{% if false %}'developer'{% endif %}"
IDS: Final = PLAIN.replace("<|im_end|>", "{% for c in m.tool_calls or [] %}{{ c.id }}{% endfor %}<|im_end|>")
EFFORT: Final = "{{ reasoning_effort }}\n" + PLAIN
