"""``python -m neuronscope`` is the console script ``neuronscope``."""

from neuronscope.cli import main

if __name__ == "__main__":
    main()
