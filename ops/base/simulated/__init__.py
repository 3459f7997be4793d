"""A server of which only devices, SGLang and the pages' bytes are modelled: its tier stack is the product's.

What the console's demo shows and what the simulator plays traces on. Each server lives on a virtual runner: a
`TierStack` with its restorer and its tiers, lease services and a lender. Modelled are SGLang's pool and tree (`device`)
and its scheduler (`scheduler`), host memory and SSDs (`stripes`), lent memory (`lending`), and the GPU, of which a
forward is the time that it takes. Pages are as large as those of the models that are named, and have no bytes: all of
them are blank, so that every checksum is written and verified, and none is ever wrong.
"""
