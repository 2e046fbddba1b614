"""Bodies as somebody hostile or careless would send them."""

import random


def mutants(body, count, seed=0):
    """So many changed copies of a body: bytes flipped, cut, repeated, inserted, or all others."""
    source = random.Random(seed)
    for _ in range(count):
        made = bytearray(body)
        for _ in range(source.choice((1, 1, 2, 8))):
            at = source.randrange(len(made) + 1)
            kind = source.randrange(6)
            if kind == 0 and made:
                made[at % len(made)] ^= 1 << source.randrange(8)
            elif kind == 1:
                del made[at:]
            elif kind == 2:
                made[at:at] = source.randbytes(source.choice((1, 4, 64)))
            elif kind == 3:
                made[at:at] = made[: source.randrange(1, 200)]
            elif kind == 4:
                made[at : at + 4] = source.choice(
                    (b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"null", b"1e99")
                )
            else:
                made = bytearray(source.randbytes(source.randrange(300))) if source.random() < 0.1 else made
        yield bytes(made)
