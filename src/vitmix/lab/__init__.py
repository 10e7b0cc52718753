"""The laboratory: everything the `vitmix` command does. It imports the library, never the other way round."""
