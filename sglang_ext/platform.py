def activate() -> None:
    return None
