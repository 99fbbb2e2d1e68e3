//! Looks at the headers of a request as they were sent: hyper merges equal lengths of a body, and removes a
//! length that comes with a transfer coding, where another server on the way may read something else.

use std::collections::VecDeque;

/// The bytes of a line that are kept: more than the names that count and the lengths after them.
const KEPT_BYTES: usize = 64;

/// What is wrong with a request whose beginning is unclear.
const UNCLEAR: Option<&str> =
    Some("the headers of the request are unclear; send it on a connection of its own");

/// Follows the requests of a connection, bodies included, so that the headers of a request that was sent before the
/// response to another one are looked at, too.
#[derive(Debug, Default)]
pub struct HeadScan {
    part: RequestPart,
    /// The beginning of the line that is being read, and its last byte.
    line: Vec<u8>,
    last: u8,
    /// Whether a line with text was read of the headers.
    has_begun: bool,
    lengths: usize,
    codings: usize,
    /// The bytes of the body, if a header says so.
    length: u64,
    /// Whether it is unclear where the next request begins.
    is_lost: bool,
    /// What is wrong with the requests whose headers were read and which are not answered yet.
    faults: VecDeque<Option<&'static str>>,
}

/// What is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestPart {
    /// The line of a request, and its headers.
    #[default]
    Head,
    /// This number of bytes of a body.
    Body(u64),
    /// The line with the size of a chunk.
    ChunkSize,
    /// This number of bytes of a chunk.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// The lines after the last chunk.
    Trailers,
}

impl HeadScan {
    /// Reads further bytes of the connection.
    pub fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match self.part {
                RequestPart::Body(left) | RequestPart::Chunk(left) => {
                    let taken = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    self.skip(left - taken as u64);
                    taken
                }
                _ => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let taken = end.unwrap_or(bytes.len());
                    let room = KEPT_BYTES.saturating_sub(self.line.len());
                    self.line.extend(bytes[..taken].iter().take(room));
                    self.last = bytes[..taken].last().copied().unwrap_or(self.last);
                    if end.is_some() {
                        self.end_line();
                    }
                    taken + usize::from(end.is_some())
                }
            };
            bytes = &bytes[taken..];
        }
    }

    /// Goes on with what follows if nothing is left of a body or a chunk.
    fn skip(&mut self, left: u64) {
        self.part = match (self.part, left) {
            (RequestPart::Chunk(_), 0) => RequestPart::ChunkEnd,
            (RequestPart::Chunk(_), _) => RequestPart::Chunk(left),
            (_, 0) => RequestPart::Head,
            _ => RequestPart::Body(left),
        };
    }

    fn end_line(&mut self) {
        let is_empty = matches!(&self.line[..], b"" | b"\r");
        // Between chunks, hyper knows no other line end.
        self.is_lost |= self.part != RequestPart::Head && self.last != b'\r';
        match self.part {
            RequestPart::ChunkSize => {
                let is_digit = |byte: &u8| byte.is_ascii_hexdigit();
                self.is_lost |= self.line.len() == KEPT_BYTES && self.line.iter().all(is_digit);
                let digits = self.line.iter().map_while(|byte| char::from(*byte).to_digit(16));
                let size = digits.fold(0, |size: u64, digit| (size << 4) | u64::from(digit));
                self.part = if size == 0 { RequestPart::Trailers } else { RequestPart::Chunk(size) };
            }
            RequestPart::ChunkEnd => self.part = RequestPart::ChunkSize,
            RequestPart::Trailers if is_empty => self.part = RequestPart::Head,
            // Empty lines before a request do not count (RFC 9112, section 2.2).
            RequestPart::Head if is_empty && self.has_begun => self.end_head(),
            RequestPart::Head => self.note_header(is_empty),
            RequestPart::Trailers | RequestPart::Body(_) | RequestPart::Chunk(_) => {}
        }
        self.line.clear();
        self.last = 0;
    }

    fn note_header(&mut self, is_empty: bool) {
        self.has_begun |= !is_empty;
        let mut parts = self.line.splitn(2, |byte| *byte == b':');
        let (name, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        if name.eq_ignore_ascii_case(b"content-length") {
            self.lengths += 1;
            // Hyper refuses what is no number, and ends the connection.
            let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            self.is_lost |= length.is_none() || self.line.len() == KEPT_BYTES;
            self.length = length.unwrap_or(0);
        }
        self.codings += usize::from(name.eq_ignore_ascii_case(b"transfer-encoding"));
    }

    fn end_head(&mut self) {
        self.faults.push_back(match (self.lengths, self.codings) {
            _ if self.is_lost => UNCLEAR,
            (2.., _) => Some("the request has several Content-Length headers; send one"),
            (1.., 1..) => Some("the request has both Content-Length and Transfer-Encoding; send one of them"),
            _ => None,
        });
        let length = std::mem::take(&mut self.length);
        self.part = match self.codings {
            0 if length > 0 => RequestPart::Body(length),
            0 => RequestPart::Head,
            // Hyper refuses codings that do not end with chunks.
            _ => RequestPart::ChunkSize,
        };
        (self.has_begun, self.lengths, self.codings) = (false, 0, 0);
    }

    /// What is wrong with the next request, as a sentence for the client.
    pub fn next_fault(&mut self) -> Option<&'static str> {
        // Every request that hyper has read was read here before.
        self.faults.pop_front().unwrap_or(UNCLEAR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether something is wrong with each of the requests of a text.
    fn faults(text: &str) -> Vec<bool> {
        let mut whole = HeadScan::default();
        whole.read(text.as_bytes());
        let mut bytewise = HeadScan::default();
        text.as_bytes().chunks(1).for_each(|byte| bytewise.read(byte));
        assert_eq!(whole.faults, bytewise.faults, "{text}");
        assert_eq!((whole.part, whole.has_begun), (bytewise.part, bytewise.has_begun), "{text}");
        whole.faults.iter().map(Option::is_some).collect()
    }

    fn fault(text: &str) -> bool {
        faults(text)[0]
    }

    #[test]
    fn only_one_header_may_say_how_long_a_body_is() {
        let head = "POST / HTTP/1.1\r\nHost: a\r\n";
        for good in [
            "Content-Length: 1",
            "Transfer-Encoding: chunked",
            "X: 1\r\ncontent-lengthy: 2\r\nContent-Length: 1",
        ] {
            assert!(!fault(&format!("{head}{good}\r\n\r\n")), "{good}");
        }
        for bad in [
            "Content-Length: 1\r\ncontent-length: 1",
            "CONTENT-LENGTH:1\r\nX: y\r\nContent-Length: 2",
            "Content-Length: 1\r\nTransfer-Encoding: chunked",
            "transfer-encoding: chunked\ncontent-length: 1",
        ] {
            assert!(fault(&format!("{head}{bad}\r\n\r\n")), "{bad}");
            assert!(fault(&format!("\r\n{head}{bad}\r\n\r\n")), "{bad}");
        }
        assert!(
            !fault(&format!("{head}Content-Length: 18\r\n\r\nContent-Length: 1\r\n")),
            "the body has lines"
        );
    }

    #[test]
    fn requests_that_come_together_are_looked_at_one_by_one() {
        let head = "POST / HTTP/1.1\r\nHost: a\r\n";
        let both = format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n");
        for first in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            format!("{head}Content-Length: 0\r\n\r\n"),
            format!("{head}Content-Length:\t 7 \r\n\r\n\r\n\r\nabc"),
            format!("{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            format!(
                "{head}Transfer-Encoding: chunked\r\n\r\n8;x=y\r\n\r\n\r\n\r\n12\r\n1 \r\na\r\n0\r\nX: y\r\n\r\n"
            ),
        ] {
            assert_eq!(faults(&format!("{first}{both}")), [false, true], "{first}");
            assert_eq!(faults(&format!("{first}\r\n{first}{both}")), [false, false, true], "{first}");
        }
        // Where hyper might see another end of the body, every further request is refused.
        let chunks = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
        for unclear in [
            format!("{head}Content-Length: {}5\r\n\r\n", " ".repeat(70)),
            format!("{chunks}{}5\r\nabcde\r\n0\r\n\r\n", "0".repeat(70)),
            format!("{chunks}0\r\nX: y\n\n"),
            format!("{chunks}1\na\r\n0\r\n\r\n"),
        ] {
            let faults = faults(&format!("{unclear}GET / HTTP/1.1\r\n\r\n"));
            assert!(faults[1..].iter().all(|is_fault| *is_fault), "{unclear}");
        }
        let mut scan = HeadScan::default();
        assert!(scan.next_fault().is_some(), "nothing was read");
        scan.read(b"GET / HTTP/1.1\n\n");
        assert_eq!(scan.next_fault(), None);
    }
}
