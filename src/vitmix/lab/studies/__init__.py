"""Studies of mixing: what labels, attention and tokens do on mixed images, with n and intervals.

Each module answers one question: pure functions of tensors, and a runner over batches of (images, labels, objects).
`vitmix.lab.studies.studies` puts them behind `vitmix analyze`.
"""
