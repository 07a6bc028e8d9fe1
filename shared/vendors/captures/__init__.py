"""What vendor tools print, parsed: a module per tool and format, each `parse(text or bytes) -> [RawDevice]`.

A capture that was cut, or whose identities cannot be believed, is refused with the field and the fix. A
single number that cannot be (NaN, negative, absurd) is only that: the field becomes None and the device says
so in its `warnings`. Models that nobody has seen yet are no error.
"""
