//! A kernel entry: its parameters, its operands and their layouts, and helpers
//! for entries.

use std::fmt;

use girih_tensor::{DType, Error, Result};

/// A kernel that a core can call.
pub struct KernelEntry {
    /// The name in programs, such as `gemm_bf16`.
    pub name: &'static str,
    /// The parameters of a call, in order.
    pub params: &'static [Param],
    /// The operands, in the order of a call's addresses.
    pub operands: &'static [KernelOperand],
    /// Multiply-accumulates of a call, for rooflines.
    pub macs: fn(&[u32]) -> u64,
    /// How it uses the cascade.
    pub cascade: CascadeUse,
    /// Finds faults of the parameters beyond those that [`KernelEntry::check`]
    /// finds for all entries.
    pub(super) fault: fn(&[u32]) -> Option<String>,
    pub(super) values: fn(&[u32], &mut KernelValues<'_>),
}

/// A parameter of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in programs.
    pub name: &'static str,
    /// The allowed values.
    pub kind: ParamKind,
}

/// The allowed values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// At least 1.
    Size,
    /// At least 0.
    Index,
    /// A float, passed as the bits of an `f32`.
    Real,
}

/// How a call uses the cascade link between neighbouring cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CascadeUse {
    /// It does not use the link.
    None,
    /// It sends its first operand.
    Send,
    /// It receives its first operand.
    Receive,
}

/// One operand of an entry.
pub struct KernelOperand {
    /// The name in messages, such as `a`.
    pub name: &'static str,
    /// How a call accesses it.
    pub access: Access,
    /// The type of its elements.
    pub dtype: DType,
    /// The layout of its elements, outermost axis first.
    pub layout: fn(&[u32]) -> Vec<Axis>,
}

/// How a call accesses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written completely and not read.
    Write,
    /// It is read and written.
    Update,
}

/// One axis of an operand in memory: the number of steps, and the logical rows
/// and columns that each step advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Steps.
    pub extent: u32,
    /// Logical rows from one step to the next.
    pub rows: u32,
    /// Logical columns from one step to the next.
    pub columns: u32,
}

/// The bytes of a call's operands.
pub struct KernelValues<'a> {
    /// Operands that are read, in order.
    pub reads: &'a [&'a [u8]],
    /// Operands that are written or updated, in order. Updated ones contain
    /// their values, written ones arbitrary bytes.
    pub writes: &'a mut [&'a mut [u8]],
}

impl KernelEntry {
    /// Checks the parameters of a call.
    ///
    /// # Errors
    /// The error names the entry and the wrong parameter.
    pub fn check(&self, params: &[u32]) -> Result<()> {
        let refuse = |text: String| Err(Error::new(format!("kernel {}: {text}", self.name)));
        if params.len() != self.params.len() {
            let needed = self.params.len();
            return refuse(format!("{} parameters given, {needed} needed", params.len()));
        }
        for (param, &number) in self.params.iter().zip(params) {
            let min = match param.kind {
                ParamKind::Size => 1,
                ParamKind::Index => 0,
                ParamKind::Real => continue,
            };
            if number < min || number > MAX_PARAM {
                let name = param.name;
                return refuse(format!("{name} is {number}: it must lie in {min}..={MAX_PARAM}"));
            }
        }
        match (self.fault)(params) {
            Some(text) => refuse(text),
            None => Ok(()),
        }
    }

    /// The bytes of each operand of a call. The parameters must have passed
    /// [`KernelEntry::check`].
    pub fn bytes(&self, params: &[u32]) -> Vec<u64> {
        self.operands.iter().map(|operand| operand.bytes(params)).collect()
    }

    /// Computes a call. The operands must have the lengths given by
    /// [`KernelEntry::bytes`].
    pub fn compute(&self, params: &[u32], values: &mut KernelValues<'_>) {
        (self.values)(params, values);
    }
}

impl fmt::Debug for KernelEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// The largest parameter of a call; operands then have fewer than 2^50 bytes.
const MAX_PARAM: u32 = 1 << 22;

impl Param {
    pub(super) const fn size(name: &'static str) -> Param {
        Param { name, kind: ParamKind::Size }
    }

    pub(super) const fn index(name: &'static str) -> Param {
        Param { name, kind: ParamKind::Index }
    }

    pub(super) const fn real(name: &'static str) -> Param {
        Param { name, kind: ParamKind::Real }
    }
}

impl KernelOperand {
    /// Its bytes in a call with these parameters.
    pub fn bytes(&self, params: &[u32]) -> u64 {
        let elements: u64 = (self.layout)(params).iter().map(|axis| u64::from(axis.extent)).product();
        elements * self.dtype.block_bytes() as u64
    }

    pub(super) const fn new(
        name: &'static str,
        access: Access,
        dtype: DType,
        layout: fn(&[u32]) -> Vec<Axis>,
    ) -> Self {
        KernelOperand { name, access, dtype, layout }
    }

    /// A bf16 operand that is read.
    pub(super) const fn reads(name: &'static str, layout: fn(&[u32]) -> Vec<Axis>) -> KernelOperand {
        KernelOperand::new(name, Access::Read, DType::BF16, layout)
    }

    /// A bf16 operand that is written.
    pub(super) const fn writes(name: &'static str, layout: fn(&[u32]) -> Vec<Axis>) -> KernelOperand {
        KernelOperand::new(name, Access::Write, DType::BF16, layout)
    }
}

/// The layout of a row-major matrix.
pub(super) fn matrix(rows: u32, columns: u32) -> Vec<Axis> {
    vec![Axis { extent: rows, rows: 1, columns: 0 }, Axis { extent: columns, rows: 0, columns: 1 }]
}

/// The layout of a vector: one row.
pub(super) fn vector(columns: u32) -> Vec<Axis> {
    vec![Axis { extent: columns, rows: 0, columns: 1 }]
}

/// The layout in blocks of `side.0` rows and `side.1` columns: row of blocks by
/// row of blocks, each block row-major.
pub(super) fn blocks(rows: u32, columns: u32, side: (u32, u32)) -> Vec<Axis> {
    vec![
        Axis { extent: rows / side.0, rows: side.0, columns: 0 },
        Axis { extent: columns / side.1, rows: 0, columns: side.1 },
        Axis { extent: side.0, rows: 1, columns: 0 },
        Axis { extent: side.1, rows: 0, columns: 1 },
    ]
}

pub(super) fn no_fault(_: &[u32]) -> Option<String> {
    None
}

/// The fault of a size that is not a multiple of `unit`, the size the vector
/// unit works on.
pub(super) fn whole(name: &str, size: u32, unit: u32) -> Option<String> {
    (!size.is_multiple_of(unit)).then(|| format!("{name} is {size}: it must be a multiple of {unit}"))
}

impl KernelValues<'_> {
    /// Read operand `i`, as f32.
    pub(super) fn bf16(&self, i: usize) -> Vec<f32> {
        unpack(DType::BF16, self.reads[i])
    }

    /// Written or updated operand `i`, as f32.
    pub(super) fn updated(&self, i: usize, dtype: DType) -> Vec<f32> {
        unpack(dtype, self.writes[i])
    }

    /// Writes operand `i`, rounded to nearest, ties to even.
    pub(super) fn store(&mut self, i: usize, dtype: DType, values: &[f32]) {
        dtype.pack(values, self.writes[i]);
    }
}

pub(super) fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes()];
    dtype.unpack(bytes, &mut values);
    values
}

/// Rounds a value to the nearest bf16, ties to even. Equal to packing with
/// `DType::BF16`, but without writing bytes.
pub(super) fn round(value: f32) -> f32 {
    let bits = value.to_bits();
    let upper = match value.is_nan() {
        true => bits | 0x0040_0000,
        false => bits + 0x7fff + (bits >> 16 & 1),
    };
    f32::from_bits(upper & 0xffff_0000)
}
