"""The ready-made serdes: `string`, `json`, `bytes`, `int32`, `int64`, `float64`.

What each writes and reads stands in `stateline.serde`.
"""

from stateline.serde import BytesSerde, FloatSerde, IntegerSerde, JsonSerde, Serde, StringSerde

__all__ = ["Serde", "bytes", "float64", "int32", "int64", "json", "string"]

string = StringSerde()
json = JsonSerde()
bytes = BytesSerde()  # shadows the builtin in this module alone, so that users write `serdes.bytes`
int32 = IntegerSerde("int32", 4)
int64 = IntegerSerde("int64", 8)
float64 = FloatSerde()
