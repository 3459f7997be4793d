"""SGLang's real scheduler and prefix tree over real tier stacks in virtual time, one process a rank of the server."""
