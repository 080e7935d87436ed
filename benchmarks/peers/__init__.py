"""The same work done by other libraries: `make bench-peers`, or `python -m benchmarks.peers [names…]`.

Each library runs in a virtual environment of its own under `.peers/`, in a process that waits for its turn, and
so does weft: they alternate. A ratio is a peer's quantity by weft's in the same round; above 1, weft is quicker.
What a library has no way to do is said, with the reason. Nothing here makes a request: the models are functions.
"""
