"""Has retrieval got worse, and why: baselines, drift, canaries, embedder fingerprints.

`statistics` and `rankings` are pure functions; `baseline` is what they are compared with; `drift` looks at
live windows; `canaries` and `embedders` ask the store and the embedder themselves; `findings` puts the three
together, causes before symptoms; `watch` runs it all beside a service.
"""
