//! Writes what events need of MessagePack (<https://github.com/msgpack/msgpack/blob/master/spec.md>).

/// A value in MessagePack, written from its front to its end.
#[derive(Default)]
pub(super) struct MessagePack(Vec<u8>);

impl MessagePack {
    /// What was written.
    pub fn bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend(value.to_be_bytes());
    }

    /// A number in the shortest form.
    pub fn number(&mut self, value: u64) {
        match (u8::try_from(value), u16::try_from(value), u32::try_from(value)) {
            (Ok(value @ ..0x80), _, _) => self.0.push(value),
            (Ok(value), _, _) => self.0.extend([0xcc, value]),
            (_, Ok(value), _) => self.marked(0xcd, &value.to_be_bytes()),
            (_, _, Ok(value)) => self.marked(0xce, &value.to_be_bytes()),
            _ => self.marked(0xcf, &value.to_be_bytes()),
        }
    }

    pub fn text(&mut self, text: &str) {
        self.length(text.len(), [(0x20, 0xa0), (0x100, 0xd9)], [0xda, 0xdb]);
        self.0.extend(text.as_bytes());
    }

    /// Begins a list of this length.
    pub fn list(&mut self, length: usize) {
        self.length(length, [(0x10, 0x90), (0, 0)], [0xdc, 0xdd]);
    }

    /// Begins a map of this number of keys, each followed by its value.
    pub fn map(&mut self, length: usize) {
        self.length(length, [(0x10, 0x80), (0, 0)], [0xde, 0xdf]);
    }

    /// A length: below the first bound within its mark, below the second one in a byte behind its mark, else in two or four
    /// bytes behind `long`.
    fn length(&mut self, length: usize, [short, byte]: [(usize, u8); 2], long: [u8; 2]) {
        match (u16::try_from(length), u32::try_from(length)) {
            _ if length < short.0 => self.0.push(short.1 | length as u8),
            _ if length < byte.0 => self.0.extend([byte.1, length as u8]),
            (Ok(length), _) => self.marked(long[0], &length.to_be_bytes()),
            (_, Ok(length)) => self.marked(long[1], &length.to_be_bytes()),
            _ => unreachable!("an event has fewer values than 32 bits count"),
        }
    }

    fn marked(&mut self, mark: u8, bytes: &[u8]) {
        self.0.push(mark);
        self.0.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut MessagePack)) -> Vec<u8> {
        let mut pack = MessagePack::default();
        write(&mut pack);
        pack.bytes()
    }

    #[test]
    fn values_have_their_shortest_form() {
        // By the specification's table of formats.
        let numbers: [(u64, &[u8]); 6] = [
            (0, &[0]),
            (127, &[0x7f]),
            (128, &[0xcc, 0x80]),
            (256, &[0xcd, 1, 0]),
            (65_536, &[0xce, 0, 1, 0, 0]),
            (u64::MAX, &[0xcf, 255, 255, 255, 255, 255, 255, 255, 255]),
        ];
        for (number, bytes) in numbers {
            assert_eq!(written(|pack| pack.number(number)), bytes, "{number}");
        }
        assert_eq!(written(|pack| pack.float(1.5)), [0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0]);
        assert_eq!(written(|pack| pack.text("ab")), [0xa2, b'a', b'b']);
        assert_eq!(written(|pack| pack.text(&"x".repeat(32)))[..2], [0xd9, 32]);
        assert_eq!(written(|pack| pack.text(&"x".repeat(256)))[..3], [0xda, 1, 0]);
        assert_eq!(written(|pack| pack.list(15)), [0x9f]);
        assert_eq!(written(|pack| pack.list(16)), [0xdc, 0, 16]);
        assert_eq!(written(|pack| pack.list(65_536)), [0xdd, 0, 1, 0, 0]);
        assert_eq!(written(|pack| pack.map(3)), [0x83]);
        assert_eq!(written(MessagePack::nil), [0xc0]);
    }
}
