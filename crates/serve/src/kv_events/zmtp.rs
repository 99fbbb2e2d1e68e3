//! The part of ZMTP 3 (<https://rfc.zeromq.org/spec/23/>, <https://rfc.zeromq.org/spec/37/>) that a server of
//! messages needs: greeting and handshake without encryption, frames, subscriptions.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The bytes of a greeting.
const GREETING_BYTES: usize = 64;

/// The maximum bytes of a frame of a client. Those of subscriptions and replay requests have some dozens.
const MAX_FRAME_BYTES: usize = 4096;

/// The flag of a frame that is followed by another one of the same message.
const MORE: u8 = 1;

/// The flag of a frame whose length has 8 bytes.
const LONG: u8 = 2;

/// The flag of a command.
const COMMAND: u8 = 4;

/// A socket type with the types that may connect to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketType {
    pub name: &'static str,
    pub peers: &'static [&'static str],
}

/// What a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientFrame {
    /// A frame of a message.
    Message {
        /// What it has.
        body: Bytes,
        /// Whether another frame of the message follows.
        more: bool,
    },
    /// A command: its name, and what follows.
    Command(String, Bytes),
}

/// What arrives from a client. Waiting for a frame may be given up and begun again.
pub(super) struct FrameReader {
    stream: OwnedReadHalf,
    arrived: BytesMut,
}

/// What is sent to a client.
pub(super) struct FrameWriter(OwnedWriteHalf);

/// Greets a client and shakes hands with it.
///
/// # Errors
/// When the connection fails, or the client speaks another protocol or is of a type that cannot connect.
pub(super) async fn accept(stream: TcpStream, own: SocketType) -> io::Result<(FrameReader, FrameWriter)> {
    let (reader, writer) = stream.into_split();
    let mut reader = FrameReader { stream: reader, arrived: BytesMut::new() };
    let mut writer = FrameWriter(writer);
    writer.0.write_all(&greeting()).await?;
    check_greeting(&reader.exactly(GREETING_BYTES).await?)?;
    writer.command("READY", &property("Socket-Type", own.name.as_bytes())).await?;
    let ClientFrame::Command(name, properties) = reader.frame().await? else {
        return Err(wrong("a client sent a message before its handshake"));
    };
    let peer = properties_value(&properties, "socket-type");
    if name != "READY" || !own.peers.iter().any(|known| Some(known.as_bytes()) == peer.as_deref()) {
        return Err(wrong("a client has a socket type that cannot connect"));
    }
    Ok((reader, writer))
}

impl FrameReader {
    /// The next frame.
    ///
    /// # Errors
    /// When the connection has ended, or what arrives is no frame of a client.
    pub async fn frame(&mut self) -> io::Result<ClientFrame> {
        loop {
            if let Some(frame) = take_frame(&mut self.arrived)? {
                return Ok(frame);
            }
            self.read().await?;
        }
    }

    /// The next `count` bytes.
    async fn exactly(&mut self, count: usize) -> io::Result<Bytes> {
        while self.arrived.len() < count {
            self.read().await?;
        }
        Ok(self.arrived.split_to(count).freeze())
    }

    async fn read(&mut self) -> io::Result<()> {
        match self.stream.read_buf(&mut self.arrived).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl FrameWriter {
    /// Writes the frames of a message.
    pub async fn message(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
        for (index, frame) in frames.iter().enumerate() {
            let more = if index + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut bytes, more, frame);
        }
        self.0.write_all(&bytes).await
    }

    /// Writes a command.
    pub async fn command(&mut self, name: &str, data: &[u8]) -> io::Result<()> {
        let body = [&[name.len() as u8], name.as_bytes(), data].concat();
        let mut bytes = Vec::with_capacity(body.len() + 9);
        put_frame(&mut bytes, COMMAND, &body);
        self.0.write_all(&bytes).await
    }
}

fn put_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend(body);
}

/// The greeting of a server without encryption: signature, version 3.1, mechanism, no server of a mechanism, filler.
fn greeting() -> [u8; GREETING_BYTES] {
    let mut greeting = [0; GREETING_BYTES];
    (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn check_greeting(greeting: &[u8]) -> io::Result<()> {
    if greeting[0] != 0xff || greeting[9] & 1 != 1 || greeting[10] < 3 {
        return Err(wrong("a client does not speak ZMTP 3"));
    }
    if &greeting[12..17] != b"NULL\0" {
        return Err(wrong("a client asks for a security mechanism, and there is none"));
    }
    Ok(())
}

/// A property of a handshake.
fn property(name: &str, value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8], name.as_bytes(), &length, value].concat()
}

/// The value of a property, whose name may be written in any case.
fn properties_value(properties: &[u8], wanted: &str) -> Option<Vec<u8>> {
    let mut left = properties;
    while !left.is_empty() {
        let (name, rest) = left[1..].split_at_checked(usize::from(left[0]))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(wanted.as_bytes()) {
            return Some(value.to_vec());
        }
        left = rest;
    }
    None
}

/// Takes the first frame out of what has arrived; `None` if it is not complete.
fn take_frame(arrived: &mut BytesMut) -> io::Result<Option<ClientFrame>> {
    let Some(&flags) = arrived.first() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(wrong("a frame has unknown flags"));
    }
    let (head, length) = match (flags & LONG, arrived.get(1), arrived.get(1..9)) {
        (0, Some(length), _) => (2, u64::from(*length)),
        (LONG, _, Some(length)) => (9, u64::from_be_bytes(length.try_into().expect("it has 8 bytes"))),
        _ => return Ok(None),
    };
    if length > MAX_FRAME_BYTES as u64 {
        return Err(wrong("a frame of a client is too long"));
    }
    let end = head + length as usize;
    if arrived.len() < end {
        return Ok(None);
    }
    let mut body = arrived.split_to(end).freeze();
    body.advance(head);
    if flags & COMMAND == 0 {
        return Ok(Some(ClientFrame::Message { body, more: flags & MORE != 0 }));
    }
    let named = body.split_first().and_then(|(length, rest)| rest.split_at_checked(usize::from(*length)));
    let Some((name, _)) = named else { return Err(wrong("a command has no name")) };
    let name = String::from_utf8_lossy(name).into_owned();
    let data = body.slice(1 + usize::from(body[0])..);
    Ok(Some(ClientFrame::Command(name, data)))
}

fn wrong(sentence: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: &[u8]) -> io::Result<Option<ClientFrame>> {
        take_frame(&mut BytesMut::from(bytes))
    }

    #[test]
    fn frames_are_taken_when_they_are_complete() {
        let mut arrived = BytesMut::from(&[MORE, 2, b'a'][..]);
        assert_eq!(take_frame(&mut arrived).unwrap(), None);
        arrived.extend_from_slice(b"b\x04\x06\x04PINGx");
        let message = ClientFrame::Message { body: Bytes::from_static(b"ab"), more: true };
        assert_eq!(take_frame(&mut arrived).unwrap(), Some(message));
        let command = ClientFrame::Command("PING".to_owned(), Bytes::from_static(b"x"));
        assert_eq!(take_frame(&mut arrived).unwrap(), Some(command));
        assert!(arrived.is_empty());
        let long = [&[LONG, 0, 0, 0, 0, 0, 0, 0, 1][..], b"z"].concat();
        assert!(matches!(taken(&long).unwrap(), Some(ClientFrame::Message { more: false, .. })));
        assert_eq!(taken(&long[..5]).unwrap(), None);
    }

    #[test]
    fn wrong_frames_are_refused() {
        let huge = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        for bytes in [&huge[..], &[0x80, 0], &[COMMAND, 0], &[COMMAND, 2, 9, b'a']] {
            assert_eq!(taken(bytes).unwrap_err().kind(), io::ErrorKind::InvalidData, "{bytes:?}");
        }
    }

    #[test]
    fn a_greeting_is_read_back() {
        assert!(check_greeting(&greeting()).is_ok());
        for (at, byte) in [(0, 0), (9, 0), (10, 2), (12, b'P')] {
            let mut other = greeting();
            other[at] = byte;
            assert!(check_greeting(&other).is_err(), "byte {at}");
        }
    }

    #[test]
    fn properties_are_found_in_any_case_and_within_their_bytes() {
        let ready = [property("Identity", b""), property("Socket-Type", b"SUB")].concat();
        assert_eq!(properties_value(&ready, "socket-type").as_deref(), Some(&b"SUB"[..]));
        assert_eq!(properties_value(&ready, "resource"), None);
        (0..ready.len()).for_each(|end| assert_eq!(properties_value(&ready[..end], "socket-type"), None));
        assert_eq!(properties_value(&[1, b'a', 255, 255, 255, 255], "a"), None);
    }

    #[test]
    fn long_frames_have_eight_bytes_of_length() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, MORE, &[7; 256]);
        assert_eq!(bytes[..10], [MORE | LONG, 0, 0, 0, 0, 0, 0, 1, 0, 7]);
        assert_eq!(bytes.len(), 265);
    }
}
