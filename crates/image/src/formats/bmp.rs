//! BMP: uncompressed images with 1, 4, 8, 16, 24 and 32 bits a pixel. Source: Microsoft's documentation of
//! `BITMAPFILEHEADER`, `BITMAPCOREHEADER`, `BITMAPINFOHEADER`, `BITMAPV4HEADER` and `BITMAPV5HEADER`.

use girih_tensor::Result;

use crate::limits::{DecodeLimits, refused};
use crate::orientation::Orientation;
use crate::raster::{PixelChannels, Raster};
use crate::zeroed::zeroed;

/// The bytes of the header before the one that describes the image.
const FILE_HEADER: usize = 14;

/// The bytes of `BITMAPINFOHEADER`, after which masks lie; longer headers hold them at the same place.
const INFO_HEADER: usize = 40;

/// What the headers say.
struct BmpHeader {
    width: u32,
    height: u32,
    is_top_down: bool,
    bits: u16,
    /// Where the rows begin.
    rows: usize,
    colours: PixelColours,
}

/// How the bits of a pixel become a colour.
enum PixelColours {
    /// The bits are an index into a palette.
    Palette(Vec<[u8; 3]>),
    /// The bits have red, green and blue where these masks have ones.
    Masks([u32; 3]),
}

/// Decodes an image.
pub(super) fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Raster> {
    let header = header(bytes)?;
    let BmpHeader { width, height, bits, .. } = header;
    let pixels = limits.check_size(width, height)?;
    // Rows are padded to 4 bytes. A row has at most 2^32 pixels of 32 bits.
    let stride = ((u64::from(width) * u64::from(bits)).div_ceil(32) * 4) as usize;
    let stored = bytes.get(header.rows..).unwrap_or_default();
    if stored.len() / stride < height as usize {
        return Err(refused(format!("the BMP file ends before its {height} rows do")));
    }
    let mut samples = zeroed(3 * pixels)?;
    for (y, to) in samples.chunks_exact_mut(3 * width as usize).enumerate() {
        let row = if header.is_top_down { y } else { height as usize - 1 - y };
        let from = &stored[row * stride..(row + 1) * stride];
        for (x, pixel) in to.chunks_exact_mut(3).enumerate() {
            pixel.copy_from_slice(&header.colours.of(value(from, x, bits)));
        }
    }
    let (channels, orientation) = (PixelChannels::Rgb, Orientation::Upright);
    Ok(Raster { width, height, channels, samples, orientation, is_animated: false })
}

/// The bits of the pixel at `x` of a row.
fn value(row: &[u8], x: usize, bits: u16) -> u32 {
    let byte = |at: usize| u32::from(row[at]);
    match bits {
        1 => byte(x / 8) >> (7 - x % 8) & 1,
        4 => byte(x / 2) >> (4 - x % 2 * 4) & 15,
        8 => byte(x),
        16 => byte(2 * x) | byte(2 * x + 1) << 8,
        24 => byte(3 * x) | byte(3 * x + 1) << 8 | byte(3 * x + 2) << 16,
        _ => byte(4 * x) | byte(4 * x + 1) << 8 | byte(4 * x + 2) << 16 | byte(4 * x + 3) << 24,
    }
}

impl PixelColours {
    /// The colour of a pixel; black if the palette has no such entry.
    fn of(&self, value: u32) -> [u8; 3] {
        match self {
            PixelColours::Palette(palette) => palette.get(value as usize).copied().unwrap_or_default(),
            PixelColours::Masks(masks) => masks.map(|mask| {
                // The reader of the header has checked that no mask is 0. As in Pillow, the result is rounded down.
                let most = u64::from(mask >> mask.trailing_zeros());
                let found = u64::from((value & mask) >> mask.trailing_zeros());
                (found * 255 / most) as u8
            }),
        }
    }
}

/// The number of 16 bits at `at`.
fn short(bytes: &[u8], at: usize) -> Result<u16> {
    let found = bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    found.map(u16::from_le_bytes).ok_or_else(|| refused("the BMP file ends within its header"))
}

/// The number of 32 bits at `at`.
fn long(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from(short(bytes, at)?) | u32::from(short(bytes, at + 2)?) << 16)
}

fn header(bytes: &[u8]) -> Result<BmpHeader> {
    let rows = long(bytes, 10)? as usize;
    let size = long(bytes, FILE_HEADER)?;
    if size == 12 {
        return core_header(bytes, rows);
    }
    if ![40, 52, 56, 64, 108, 124].contains(&size) {
        return Err(refused(format!("the BMP image has a header of {size} bytes; its version is unknown")));
    }
    let field = |at: usize| long(bytes, FILE_HEADER + at);
    let (width, height) = (field(4)?.cast_signed(), field(8)?.cast_signed());
    let (bits, compression, used) = (short(bytes, FILE_HEADER + 14)?, field(16)?, field(32)?);
    let width = u32::try_from(width).map_err(|_| refused(format!("the BMP image has a width of {width}")))?;
    let has_masks = match compression {
        0 => false,
        3 | 6 if size != 64 => true,
        1 | 2 => return Err(refused("the BMP image has run-length compression; save it as PNG")),
        other => return Err(refused(format!("the BMP image has compression {other}; save it as PNG"))),
    };
    let colours = match (bits, has_masks) {
        (1 | 4 | 8, false) => {
            let start = FILE_HEADER + size as usize;
            PixelColours::Palette(palette(bytes, start, 4, used.min(1 << bits), bits)?)
        }
        (16, false) => PixelColours::Masks([0x7c00, 0x03e0, 0x001f]),
        (24 | 32, false) => PixelColours::Masks([0xff_0000, 0xff00, 0xff]),
        (16 | 32, true) => PixelColours::Masks(masks(bytes)?),
        _ => return Err(refused(format!("the BMP image has {bits} bits a pixel; save it as PNG"))),
    };
    Ok(BmpHeader { width, height: height.unsigned_abs(), is_top_down: height < 0, bits, rows, colours })
}

/// The header of OS/2: sizes of 16 bits, palettes of 3 bytes a colour.
fn core_header(bytes: &[u8], rows: usize) -> Result<BmpHeader> {
    let (width, height) = (short(bytes, FILE_HEADER + 4)?, short(bytes, FILE_HEADER + 6)?);
    let bits = short(bytes, FILE_HEADER + 10)?;
    let colours = match bits {
        1 | 4 | 8 => PixelColours::Palette(palette(bytes, FILE_HEADER + 12, 3, 0, bits)?),
        24 => PixelColours::Masks([0xff_0000, 0xff00, 0xff]),
        _ => return Err(refused(format!("the BMP image has {bits} bits a pixel; save it as PNG"))),
    };
    let (width, height) = (u32::from(width), u32::from(height));
    Ok(BmpHeader { width, height, is_top_down: false, bits, rows, colours })
}

/// The palette at `start`, of `used` colours (0 for all of `bits`) with `step` bytes each: blue, green, red.
fn palette(bytes: &[u8], start: usize, step: usize, used: u32, bits: u16) -> Result<Vec<[u8; 3]>> {
    let count = if used == 0 { 1 << bits } else { used as usize };
    let stored = bytes.get(start..start + count * step);
    let stored = stored.ok_or_else(|| refused("the BMP file ends within its palette"))?;
    Ok(stored.chunks_exact(step).map(|colour| [colour[2], colour[1], colour[0]]).collect())
}

/// The masks of red, green and blue.
fn masks(bytes: &[u8]) -> Result<[u32; 3]> {
    let mask = |index: usize| {
        let mask = long(bytes, FILE_HEADER + INFO_HEADER + 4 * index)?;
        let ones = mask.checked_shr(mask.trailing_zeros()).unwrap_or(0);
        // Of a run of ones, the next number is a power of two.
        if mask == 0 || ones & ones.wrapping_add(1) != 0 {
            return Err(refused(format!(
                "the BMP image has the colour mask {mask:#x}, which is no run of ones"
            )));
        }
        Ok(mask)
    };
    Ok([mask(0)?, mask(1)?, mask(2)?])
}
