"""`python -m cabafl`"""

from cabafl.cli import main

if __name__ == "__main__":
    main()
