//! The messages between the renderer and its worker: frames of a length (4 bytes,
//! little-endian) and JSON.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A template to render.
#[derive(Serialize, Deserialize)]
pub struct RenderJob {
    /// The template's source.
    pub template: String,
    /// The template's variables.
    pub variables: Map<String, Value>,
    /// The time of `strftime_now`, in seconds since 1970.
    pub unix_seconds: i64,
    /// The maximum bytes of output; the job fails beyond it.
    pub output_bytes: usize,
}

/// The result of a job.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum RenderAnswer {
    /// The output.
    Text(String),
    /// The template called `raise_exception` with this message.
    Raised(String),
    /// Any other failure, as the rest of a sentence that begins with "the chat
    /// template" ("failed in line 3: ...").
    Failed(String),
}

/// Writes one frame.
pub fn write_frame(to: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::Error::other("a frame of 4 GiB or more"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(body)?;
    to.flush()
}

/// Reads one frame of at most `cap` bytes; `None` at the end of the stream.
pub fn read_frame(from: &mut impl Read, cap: usize) -> io::Result<Option<Vec<u8>>> {
    let mut header = Vec::with_capacity(4);
    from.take(4).read_to_end(&mut header)?;
    if header.is_empty() {
        return Ok(None);
    }
    let header: [u8; 4] = header.try_into().map_err(|_| io::ErrorKind::UnexpectedEof)?;
    let length = u32::from_le_bytes(header) as usize;
    if length > cap {
        return Err(io::Error::other(format!("a frame of {length} bytes, the maximum is {cap}")));
    }
    // The buffer grows with the bytes read, so a false length allocates nothing.
    let mut body = Vec::new();
    from.take(length as u64).read_to_end(&mut body)?;
    if body.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_back_and_bad_ones_refused() {
        let mut stream = Vec::new();
        write_frame(&mut stream, b"one").expect("a Vec takes all bytes");
        write_frame(&mut stream, b"").expect("a Vec takes all bytes");
        let mut from = stream.as_slice();
        assert_eq!(read_frame(&mut from, 3).expect("whole"), Some(b"one".to_vec()));
        assert_eq!(read_frame(&mut from, 3).expect("whole"), Some(Vec::new()));
        assert_eq!(read_frame(&mut from, 3).expect("the end"), None);

        assert!(read_frame(&mut stream.as_slice(), 2).is_err());
        assert!(read_frame(&mut &stream[..2], 3).is_err());
        assert!(read_frame(&mut &stream[..6], 3).is_err());
        assert!(read_frame(&mut [255; 4].as_slice(), usize::MAX).is_err());
    }
}
