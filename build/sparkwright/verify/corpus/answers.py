"""The comparison of a generated text with the expected answer."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w]|\.\d)")
_GROUPED = re.compile(r"(?<=\d)[,\u202f\u00a0](?=\d{3}(?!\d))")  # 1,234: comma or a narrow space
_NOT_A_SIGN = re.compile(r"(?<=[\w)\]])-(?=\d)")  # 12-15 is a range, not a negative number


def holds(expect: str, text: str) -> bool:
    """Tell if *text* contains the answer *expect*.

    A number is compared as a number, so that ``2,315.250`` is ``2315.25`` and ``112`` is not ``12``. Anything
    else must stand in the text as it is but for its case, and not as a part of a longer word.

    Args:
        expect: the answer, such as ``2315.25`` or ``HL-2291-B``; nothing is expected where it is empty.
        text: the generated text.
    """
    plain = text.replace("\u2212", "-")
    if not _NUMBER.fullmatch(expect):
        pattern = rf"(?<!\w){re.escape(expect)}(?!\w)"
        return re.search(pattern, plain, re.IGNORECASE) is not None
    numbers = _NUMBER.findall(_NOT_A_SIGN.sub(" ", _GROUPED.sub("", plain)))
    return any(float(number) == float(expect) for number in numbers)
