"""`python -m fairssl`."""

from fairssl.cli import main

main()
