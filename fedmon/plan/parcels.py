"""Values as bytes: a JSON object where there is no array, else a ``.npz`` file that holds a document and the arrays.

The document, ``document.json``, is ``{"values": ..., "arrays": [[...], ...]}``: the values with null where arrays were,
and for each array, ``0.npy``, ``1.npy`` and so on, its place as a list of keys and indices. No byte of it is a pickle.
"""

from __future__ import annotations

from fedmon.plan.values import MAX_DOCUMENT_BYTES, InvalidValuesError, TooLargeError, ValuesWriter, quoted

__all__ = ["InvalidValuesError", "Packed", "TooLargeError", "pack", "unpack"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, Protocol

    import numpy.typing as npt

    from fedmon.plan.values import Place

    Piece = bytes | memoryview

    class ByteWriter(Protocol):
        """Where bytes go; takes all of them."""

        def write(self, data: Piece, /) -> int:
            """Write the bytes."""


class Packed:
    """Values ready to leave; the memory of contiguous arrays is used where it lies, so leave it as it is till then."""

    __slots__ = ("_pieces", "format", "size_bytes")

    def __init__(self, parcel_format: Literal["json", "npz"], pieces: Sequence[Piece]) -> None:
        self.format = parcel_format
        self._pieces = pieces
        self.size_bytes = sum(map(len, pieces))

    def write(self, stream: ByteWriter) -> None:
        """Write the bytes, ``size_bytes`` of them."""
        for piece in self._pieces:
            stream.write(piece)


def pack(values: Mapping[str, Any], *, max_bytes: int | None = None) -> Packed:
    """Make values into a parcel; needs numpy only when there are arrays.

    JSON values travel: texts, finite numbers, truths, None, lists, tuples (as lists) and mappings with text keys, at
    most 32 deep and 16 MiB; numpy's scalars as these; and arrays of truths, integers, floats, complex numbers and texts
    of any shape, where NaN is allowed. Raises InvalidValuesError naming the place of anything else, such as
    ``model.w: an array of objects``; and TooLargeError when it is more than ``max_bytes``.
    """
    writer = ValuesWriter(max_bytes=max_bytes)
    document = _bounded(writer.text(values).encode(), max_bytes)
    if not writer.arrays:
        return _fitting(Packed("json", [document]), max_bytes)
    places = ",".join(map(_place_text, writer.places))
    document = _bounded(b'{"values":' + document + f',"arrays":[{places}]}}'.encode(), max_bytes)
    from fedmon.plan import archive

    files: list[tuple[str, list[Piece]]] = [(archive.DOCUMENT, [document])]
    files += [(f"{number}.npy", _npy(array)) for number, array in enumerate(writer.arrays)]
    return _fitting(Packed("npz", archive.write(files)), max_bytes)


def unpack(parcel_format: str, buffer: Any) -> dict[str, Any]:
    """Return the values of a parcel; arrays are the buffer's own memory, and can be written to when it can.

    Raises InvalidValuesError if the bytes are not a parcel, or if arrays need numpy and it is missing.
    """
    from fedmon.plan import parcel_check
    from fedmon.plan.archive import item_bytes

    view = memoryview(buffer).cast("B")
    values, arrays = parcel_check.contents(parcel_format, view)
    if not arrays:
        return values
    try:
        import numpy as np
    except ImportError as error:
        raise InvalidValuesError(f"the values hold arrays, and this Python has no numpy ({error})") from None
    for array in arrays:
        header = array.header
        count = header.data_bytes // item_bytes(header.descr)
        flat = np.frombuffer(view, np.dtype(header.descr), count, array.offset)
        shaped = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
        parcel_check.container_of(values, array.place)[array.place[-1]] = shaped
    return values


def _npy(array: npt.NDArray[Any]) -> list[Piece]:
    """Return a ``.npy`` file: its header, and the memory of the array, or of a copy where it is not contiguous."""
    import numpy as np

    from fedmon.plan.archive import array_header

    plain = np.asarray(array)
    if not plain.dtype.itemsize:
        plain = plain.astype(plain.dtype.kind + "1")
    is_fortran = plain.flags.f_contiguous and not plain.flags.c_contiguous
    ordered = plain.T if is_fortran else np.ascontiguousarray(plain)
    header = array_header(descr=plain.dtype.str, fortran_order=is_fortran, shape=plain.shape)
    return [header, memoryview(ordered.reshape(-1).view(np.uint8).data)]


def _place_text(place: Place) -> str:
    return "[" + ",".join(quoted(step) if isinstance(step, str) else str(step) for step in place) + "]"


def _bounded(document: bytes, max_bytes: int | None) -> bytes:
    if max_bytes is not None and len(document) > max_bytes:
        raise TooLargeError(max_bytes)
    if len(document) > MAX_DOCUMENT_BYTES:
        raise InvalidValuesError(f"{len(document)} bytes of JSON, more than {MAX_DOCUMENT_BYTES}: send arrays")
    return document


def _fitting(packed: Packed, max_bytes: int | None) -> Packed:
    if max_bytes is not None and packed.size_bytes > max_bytes:
        raise TooLargeError(max_bytes)
    return packed
