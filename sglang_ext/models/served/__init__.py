"""What SGLang's registry of models is given: one module a family, `EntryClass` in each."""
