//! The bytes of a blob's sections: the parts of a schedule as numbers of variable
//! length. The reader checks lengths against the remaining bytes, and the nesting
//! of loops against a maximum.

use girih_tensor::{Error, Result};

use crate::form::schedule::text::MAX_LOOPS;
use crate::form::schedule::{
    Affine, Argument, ArgumentRole, Buffer, BufferId, CallOperand, Cascade, Channel, Core, CoreCall,
    CoreInstruction, Dim, Direction, Hop, LockChange, LockId, Parameter, ParameterValue, ProcessorCommand,
    Push, Route, Start, Term, Tile, TileLock,
};

/// A value that a section can hold.
pub(super) trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut SectionWriter);
    /// Reads a value.
    fn get(input: &mut SectionReader<'_>) -> Result<Self>;
}

/// The bytes of a section being written, and the constants of all sections, which
/// the bytes refer to by index.
#[derive(Debug, Default)]
pub(super) struct SectionWriter {
    bytes: Vec<u8>,
    constants: Vec<f32>,
}

impl SectionWriter {
    /// The number of bytes of the section so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    fn push(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Returns the index of a constant, the same for equal ones.
    fn constant(&mut self, value: f32) -> u32 {
        let known = self.constants.iter().position(|known| known.to_bits() == value.to_bits());
        known.unwrap_or_else(|| {
            self.constants.push(value);
            self.constants.len() - 1
        }) as u32
    }

    /// Ends the section and returns its bytes.
    pub fn section(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Returns all constants, four bytes each.
    pub fn constants(&self) -> Vec<u8> {
        self.constants.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// The bytes of a section being read, and the constants that they refer to.
pub(super) struct SectionReader<'a> {
    bytes: &'a [u8],
    constants: &'a [[u8; 4]],
    at: usize,
    depth: usize,
}

impl<'a> SectionReader<'a> {
    pub fn new(bytes: &'a [u8], constants: &'a [[u8; 4]]) -> SectionReader<'a> {
        SectionReader { bytes, constants, at: 0, depth: 0 }
    }

    /// Reads the index of a constant and returns the constant.
    fn constant(&mut self) -> Result<f32> {
        let index = u32::get(self)?;
        let bytes = self.constants.get(index as usize);
        let missing = || Error::new(format!("a program uses constant {index} of {}", self.constants.len()));
        Ok(f32::from_le_bytes(*bytes.ok_or_else(missing)?))
    }

    /// The number of bytes that have been read.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Reads the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| Error::new("a section ends in the middle of a value"))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        self.take(1).map(|byte| byte[0])
    }

    /// Checks that the section has ended.
    pub fn end(&self) -> Result<()> {
        let left = self.bytes.len() - self.at;
        if left == 0 { Ok(()) } else { Err(Error::new(format!("a section has {left} bytes too many"))) }
    }

    /// Reads the number of values that follow, which take at least a byte each.
    fn count(&mut self) -> Result<usize> {
        let count = u64::get(self)?;
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(Error::new(format!("a section declares {count} values in {left} bytes")));
        }
        Ok(count as usize)
    }

    /// Reads the body of a loop.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_LOOPS {
            return Err(Error::new(format!(
                "a section has a loop in {MAX_LOOPS} others, which is the maximum"
            )));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut SectionWriter) {
        let mut rest = *self;
        while rest >= 0x80 {
            out.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        out.push(rest as u8);
    }

    fn get(input: &mut SectionReader<'_>) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = input.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::new("a section has a number of more than 64 bits"))
    }
}

/// Smaller integers are read as `u64` and checked against their range.
macro_rules! narrow {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut SectionWriter) {
                u64::from(*self).put(out);
            }

            fn get(input: &mut SectionReader<'_>) -> Result<$type> {
                let value = u64::get(input)?;
                <$type>::try_from(value).map_err(|_| {
                    Error::new(format!("a section has the number {value}, which is too large for its field"))
                })
            }
        }
    )*};
}

narrow!(u8, u32);

impl Wire for i64 {
    fn put(&self, out: &mut SectionWriter) {
        (((self << 1) ^ (self >> 63)) as u64).put(out);
    }

    fn get(input: &mut SectionReader<'_>) -> Result<i64> {
        let value = u64::get(input)?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

impl Wire for bool {
    fn put(&self, out: &mut SectionWriter) {
        out.push(u8::from(*self));
    }

    fn get(input: &mut SectionReader<'_>) -> Result<bool> {
        match input.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            byte => Err(unknown("a boolean", byte)),
        }
    }
}

impl Wire for String {
    fn put(&self, out: &mut SectionWriter) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self.as_bytes());
    }

    fn get(input: &mut SectionReader<'_>) -> Result<String> {
        let count = input.count()?;
        let bytes = input.take(count)?;
        let text =
            std::str::from_utf8(bytes).map_err(|_| Error::new("a section has a name that is not UTF-8"))?;
        Ok(text.to_owned())
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut SectionWriter) {
        (self.len() as u64).put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(input: &mut SectionReader<'_>) -> Result<Vec<T>> {
        let count = input.count()?;
        (0..count).map(|_| T::get(input)).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut SectionWriter) {
        self.is_some().put(out);
        self.iter().for_each(|item| item.put(out));
    }

    fn get(input: &mut SectionReader<'_>) -> Result<Option<T>> {
        Ok(if bool::get(input)? { Some(T::get(input)?) } else { None })
    }
}

fn unknown(what: &str, byte: u8) -> Error {
    Error::new(format!("a section has the byte {byte} where {what} is needed"))
}

/// A struct is written as its fields, in order.
macro_rules! fields {
    ($($type:ident { $($field:tt),* })*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut SectionWriter) {
                $(self.$field.put(out);)*
            }

            fn get(input: &mut SectionReader<'_>) -> Result<$type> {
                Ok($type { $($field: Wire::get(input)?),* })
            }
        }
    )*};
}

fields! {
    Argument { name, role, bytes }
    Tile { column, row }
    Buffer { name, tile, address, bytes }
    BufferId { 0 }
    LockId { 0 }
    TileLock { tile, id, initial }
    LockChange { lock, value }
    Dim { size, stride }
    Channel { tile, direction, number }
    Start { channel, descriptor, repeats }
    Hop { channel, hops }
    Route { from, to }
    Cascade { from, to }
    Core { tile, program }
    CoreCall { entry, operands, parameters }
    CallOperand { slots, slot, offset }
    Parameter { name, value }
    Affine { constant, terms }
    Term { depth, factor }
    Push { channel, descriptor, offset, repeats, token }
}

impl Wire for ArgumentRole {
    fn put(&self, out: &mut SectionWriter) {
        let index = ArgumentRole::ALL.iter().position(|role| role == self);
        out.push(index.expect("the list has every role") as u8);
    }

    fn get(input: &mut SectionReader<'_>) -> Result<ArgumentRole> {
        let byte = input.byte()?;
        ArgumentRole::ALL.get(usize::from(byte)).copied().ok_or_else(|| unknown("a role", byte))
    }
}

impl Wire for Direction {
    fn put(&self, out: &mut SectionWriter) {
        (*self == Direction::S2mm).put(out);
    }

    fn get(input: &mut SectionReader<'_>) -> Result<Direction> {
        Ok(if bool::get(input)? { Direction::S2mm } else { Direction::Mm2s })
    }
}

impl Wire for ParameterValue {
    fn put(&self, out: &mut SectionWriter) {
        match self {
            ParameterValue::Int(value) => {
                out.push(0);
                value.put(out);
            }
            ParameterValue::Float(value) => {
                out.push(1);
                out.constant(*value).put(out);
            }
        }
    }

    fn get(input: &mut SectionReader<'_>) -> Result<ParameterValue> {
        match input.byte()? {
            0 => Ok(ParameterValue::Int(Affine::get(input)?)),
            1 => Ok(ParameterValue::Float(input.constant()?)),
            byte => Err(unknown("a kind of number", byte)),
        }
    }
}

/// An instruction is written as a number and its content; a loop has the number 0.
macro_rules! instructions {
    ($($type:ident, $what:literal { $($number:literal $variant:ident),* })*) => {$(
        impl Wire for $type {
            fn put(&self, out: &mut SectionWriter) {
                match self {
                    $type::Loop { count, body } => {
                        out.push(0);
                        count.put(out);
                        body.put(out);
                    }
                    $($type::$variant(content) => {
                        out.push($number);
                        content.put(out);
                    })*
                }
            }

            fn get(input: &mut SectionReader<'_>) -> Result<$type> {
                match input.byte()? {
                    0 => Ok($type::Loop { count: Wire::get(input)?, body: input.nested(Vec::get)? }),
                    $($number => Ok($type::$variant(Wire::get(input)?)),)*
                    byte => Err(unknown($what, byte)),
                }
            }
        }
    )*};
}

instructions! {
    CoreInstruction, "an instruction" { 1 Acquire, 2 Release, 3 Call }
    ProcessorCommand, "a command" { 1 Push, 2 Wait }
}
