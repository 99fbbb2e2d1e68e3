//! Looks at the headers of a request as they were sent: hyper merges equal lengths of a body, and removes a
//! length that comes with a transfer coding, where another server on the way may read something else.

/// The bytes of a line that are kept: more than the names that count.
const KEPT_BYTES: usize = 32;

/// What the headers of a request say of its body. Those of a request that comes together with the one before
/// it are not looked at.
#[derive(Debug, Default)]
pub struct HeadScan {
    /// The beginning of the line that is being read.
    line: Vec<u8>,
    /// Whether a line with text was read.
    has_begun: bool,
    has_ended: bool,
    lengths: usize,
    codings: usize,
}

impl HeadScan {
    /// Reads further bytes of the request.
    pub fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                _ if self.has_ended => return,
                b'\n' => self.end_line(),
                _ if self.line.len() < KEPT_BYTES => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self) {
        let name = self.line.split(|byte| *byte == b':').next().unwrap_or_default();
        self.lengths += usize::from(name.eq_ignore_ascii_case(b"content-length"));
        self.codings += usize::from(name.eq_ignore_ascii_case(b"transfer-encoding"));
        let is_empty = matches!(&self.line[..], b"" | b"\r");
        // Empty lines before a request do not count (RFC 9112, section 2.2).
        self.has_ended = is_empty && self.has_begun;
        self.has_begun |= !is_empty;
        self.line.clear();
    }

    /// What is wrong, as a sentence for the client.
    pub fn fault(&self) -> Option<&'static str> {
        match (self.lengths, self.codings) {
            (2.., _) => Some("the request has several Content-Length headers; send one"),
            (1.., 1..) => Some("the request has both Content-Length and Transfer-Encoding; send one of them"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> bool {
        let mut whole = HeadScan::default();
        whole.read(text.as_bytes());
        let mut bytewise = HeadScan::default();
        text.as_bytes().chunks(1).for_each(|byte| bytewise.read(byte));
        assert_eq!(whole.fault(), bytewise.fault());
        whole.fault().is_some()
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
}
