def load() -> None:
    pass
