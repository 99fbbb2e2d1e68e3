//! Reads the orientation from EXIF data, and nothing else.

use crate::orientation::Orientation;

/// The tag of the orientation (EXIF 2.32, 4.6.4).
const ORIENTATION: u16 = 0x0112;

/// TIFF's type of an unsigned number of 16 bits.
const SHORT: u16 = 3;

/// The orientation that EXIF data states; upright if the data is broken or states none.
pub(crate) fn orientation(data: &[u8]) -> Orientation {
    let tiff = data.strip_prefix(b"Exif\0\0").unwrap_or(data);
    number(tiff).map_or(Orientation::Upright, Orientation::from_exif)
}

/// The number of the orientation in the first directory of a TIFF file.
fn number(tiff: &[u8]) -> Option<u16> {
    let is_big = match tiff.get(..4)? {
        [b'M', b'M', 0, 42] => true,
        [b'I', b'I', 42, 0] => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if is_big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    };
    let long = |at: usize| {
        let (first, second) = (u32::from(short(at)?), u32::from(short(at.checked_add(2)?)?));
        Some(if is_big { first << 16 | second } else { second << 16 | first })
    };
    let directory = usize::try_from(long(4)?).ok()?;
    // An entry has 12 bytes: tag, type, number of values, and the value.
    (0..usize::from(short(directory)?))
        .map_while(|entry| directory.checked_add(2 + 12 * entry))
        .find(|entry| short(*entry) == Some(ORIENTATION) && short(entry + 2) == Some(SHORT))
        .and_then(|entry| short(entry + 8))
}
