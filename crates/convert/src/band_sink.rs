//! Gathers the bytes of a matrix to rows of blocks.

use girih_tensor::Result;

use super::bands::TensorSink;

/// Calls `each` with the rows of each row of blocks of a matrix.
pub(super) struct BandSink<'a> {
    band: Vec<u8>,
    /// The bytes of a whole one.
    bytes: usize,
    each: &'a mut dyn FnMut(&[u8]) -> Result<()>,
}

impl BandSink<'_> {
    /// A sink of a matrix whose rows of blocks have `bytes` bytes each.
    pub fn new<'a>(bytes: usize, each: &'a mut dyn FnMut(&[u8]) -> Result<()>) -> BandSink<'a> {
        BandSink { band: Vec::new(), bytes, each }
    }

    /// Hands on the last rows, which may be fewer.
    pub fn finish(self) -> Result<()> {
        let BandSink { band, each, .. } = self;
        if band.is_empty() { Ok(()) } else { each(&band) }
    }
}

impl TensorSink for BandSink<'_> {
    fn append(&mut self, _: &str, bytes: &[u8]) -> Result<()> {
        self.band.extend(bytes);
        let whole = self.band.len() / self.bytes * self.bytes;
        self.band[..whole].chunks_exact(self.bytes).try_for_each(&mut *self.each)?;
        self.band.drain(..whole);
        Ok(())
    }
}
