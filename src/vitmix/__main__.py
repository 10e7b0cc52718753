"""`python -m vitmix`: the command without its installed script."""

from vitmix.cli import main

raise SystemExit(main())
