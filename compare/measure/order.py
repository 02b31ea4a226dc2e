"""The order in which contenders' blocks are timed."""


def palindromic(contenders: int, repeats: int) -> list[int]:
    """Return contender indices as A B C C B A, `repeats` times: each gets 2 * repeats blocks.

    A drift that is linear in time then weighs on every contender alike, within each palindrome.
    """
    forward = list(range(contenders))
    return [*forward, *reversed(forward)] * repeats
