"""From two recordings to what changed between them: ``ns.compare(before, after)``.

`reading` makes compact columns of each side in one pass; `pairs` finds the same question asked twice;
`detectors` are small functions over both sides, each for one kind of change; `ranking` puts causes before
what follows from them.  `result` holds the answer.
"""
