//! The two digests that name blobs: sha256 for large files, and git's blob id
//! (sha1 over a header and the bytes) for small ones.

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use girih_file::open_regular;
use girih_tensor::{Error, Result};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// The expected digest of a file. Its text is the blob's file name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Digest {
    /// sha256 of the bytes, for files in large-file storage.
    Sha256([u8; 32]),
    /// sha1 of `blob <length>\0` and the bytes, for files in git.
    GitBlob([u8; 20]),
}

impl Digest {
    /// Reads 64 (sha256) or 40 (git) lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Digest> {
        match text.len() {
            64 => Some(Digest::Sha256(hex(text)?)),
            40 => Some(Digest::GitBlob(hex(text)?)),
            _ => None,
        }
    }

    /// Whether both are of the same kind but differ.
    pub fn contradicts(&self, other: &Digest) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self != other
    }

    /// A hasher of the same kind for `length` bytes.
    pub fn hasher(&self, length: u64) -> Hasher {
        match self {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::GitBlob(_) => Hasher::GitBlob(Sha1::new_with_prefix(format!("blob {length}\0"))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Digest::Sha256(bytes) => bytes,
            Digest::GitBlob(bytes) => bytes,
        };
        bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    (text.len() == 2 * N).then_some(bytes)
}

/// A digest being computed.
#[derive(Clone)]
pub(super) enum Hasher {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Hasher {
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::GitBlob(hasher) => hasher.update(bytes),
        }
    }

    /// Hashes everything that `reader` yields; returns the number of bytes.
    pub fn update_from(&mut self, reader: impl Read) -> io::Result<u64> {
        self.update_watched(reader, &mut |_| {})
    }

    /// As [`Hasher::update_from`]; `progress` gets the number of bytes of each read.
    pub fn update_watched(
        &mut self,
        mut reader: impl Read,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<u64> {
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(count) => {
                    self.update(&buffer[..count]);
                    total += count as u64;
                    progress(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(hasher) => Digest::Sha256(hasher.finalize().into()),
            Hasher::GitBlob(hasher) => Digest::GitBlob(hasher.finalize().into()),
        }
    }
}

/// The sha256 of the concatenated bytes of files, in hexadecimal; identifies
/// the measured model.
///
/// # Errors
/// When a file cannot be read.
pub fn sha256<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Result<String> {
    let mut hasher = Hasher::Sha256(Sha256::new());
    for path in paths {
        let fails = |error| Error::new(format!("{}: cannot be read: {error}", path.display()));
        hasher.update_from(open_regular(path).map_err(fails)?).map_err(fails)?;
    }
    Ok(hasher.finish().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_files_hash_like_no_bytes() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(sha256([]).unwrap(), empty);
        assert!(sha256([Path::new("/no/such/file")]).is_err());
    }

    /// The empty file's digests: FIPS 180-4's empty message, and the id that
    /// `git hash-object /dev/null` prints.
    #[test]
    fn the_empty_file_has_its_well_known_digests() {
        let empty = [
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
        ];
        for text in empty {
            let digest = Digest::parse(text).unwrap();
            assert_eq!(digest.hasher(0).finish(), digest);
            assert_eq!(digest.to_string(), text);
        }
    }

    #[test]
    fn only_lower_case_hexadecimal_of_the_right_length_is_a_digest() {
        for text in ["", "e3b0", &"g".repeat(64), &"A".repeat(40), &"é".repeat(20), &"0".repeat(41)] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
    }
}
