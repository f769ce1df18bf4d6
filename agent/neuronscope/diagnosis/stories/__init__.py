"""A comparison told to people: one page that explains itself, and a text for a ticket.

`html` and `markdown` are pure functions of a `Comparison`.  Both begin with the story in plain words (what
changed, where, how sure that is, what it explains) and go on to the evidence.
"""

from neuronscope.diagnosis.stories.page import html
from neuronscope.diagnosis.stories.ticket import markdown

__all__ = ["html", "markdown"]
