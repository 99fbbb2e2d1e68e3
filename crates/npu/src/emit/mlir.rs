//! MLIR as a tree of operations, which prints in the generic form.
//!
//! The generic form is the one that tools accept for operations of any dialect, also for those
//! that IRDL defines: `%0 = "aie.tile"() {col = 0 : i32, row = 2 : i32} : () -> index`. Only
//! `aie.device` has its own syntax, because the number of a device differs between versions
//! of mlir-aie, and its name does not.

use std::collections::BTreeMap;
use std::fmt;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MlirType {
    /// `index`.
    Index,
    /// `i1`.
    I1,
    /// `i32`.
    I32,
    /// `f32`.
    F32,
    /// A buffer of this many words of four bytes: `memref<256xi32>`.
    Words(u64),
}

/// A value: its number in the text, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MlirValue {
    /// The number after `%`, unique in a module.
    pub number: u32,
    /// The type.
    pub of: MlirType,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum MlirAttribute {
    /// An integer and its type, such as `i32` or `ui32`.
    Int(i64, &'static str),
    /// A truth value.
    Bool(bool),
    /// A float of 32 bits, printed as its bits.
    Float(f32),
    /// A string.
    Text(String),
    /// A reference to a symbol.
    Symbol(String),
    /// A dense array of integers of this type.
    Array(Vec<i64>, &'static str),
    /// The type of a function without results.
    Function(Vec<MlirType>),
    /// Sizes and strides of a descriptor in words, outermost first (`BDDimLayoutArrayAttr`).
    Dims(Vec<(u32, u32)>),
}

/// The blocks of an operation; the first is the entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirRegion {
    /// The blocks; a successor is an index here.
    pub blocks: Vec<MlirBlock>,
}

/// Operations that run one after another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirBlock {
    /// The values that the block begins with.
    pub arguments: Vec<MlirValue>,
    /// The operations.
    pub ops: Vec<MlirOp>,
}

/// An operation.
#[derive(Clone, Debug, PartialEq)]
pub struct MlirOp {
    /// The name, such as `aie.tile`.
    pub name: &'static str,
    /// The values that it uses.
    pub operands: Vec<MlirValue>,
    /// The blocks of its region that may follow.
    pub successors: Vec<usize>,
    /// Its regions.
    pub regions: Vec<MlirRegion>,
    /// Its attributes.
    pub attributes: Vec<(&'static str, MlirAttribute)>,
    /// The value that it defines.
    pub result: Option<MlirValue>,
}

/// One configuration of an array: `aie.device`.
#[derive(Clone, Debug, PartialEq)]
pub struct MlirDevice {
    /// The symbol, such as `launch_0`.
    pub symbol: String,
    /// The device, such as `npu2`.
    pub device: &'static str,
    /// The operations.
    pub ops: Vec<MlirOp>,
}

/// A file: the configurations of a program's launches, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MlirModule {
    /// The configurations.
    pub devices: Vec<MlirDevice>,
}

impl MlirBlock {
    /// Creates a block without arguments.
    pub fn of(ops: Vec<MlirOp>) -> MlirBlock {
        MlirBlock { arguments: Vec::new(), ops }
    }
}

impl MlirRegion {
    /// Creates a region of one block.
    pub fn of(block: MlirBlock) -> MlirRegion {
        MlirRegion { blocks: vec![block] }
    }
}

impl MlirOp {
    /// Creates an operation without operands, attributes and regions.
    pub fn new(name: &'static str) -> MlirOp {
        let (operands, successors, regions) = (Vec::new(), Vec::new(), Vec::new());
        MlirOp { name, operands, successors, regions, attributes: Vec::new(), result: None }
    }

    /// Adds operands.
    pub fn uses(mut self, operands: impl IntoIterator<Item = MlirValue>) -> MlirOp {
        self.operands.extend(operands);
        self
    }

    /// Adds an attribute.
    pub fn with(mut self, name: &'static str, value: MlirAttribute) -> MlirOp {
        self.attributes.push((name, value));
        self
    }

    /// Adds an attribute of type `i32`.
    pub fn int(self, name: &'static str, value: impl Into<i64>) -> MlirOp {
        self.with(name, MlirAttribute::Int(value.into(), "i32"))
    }

    /// Adds a region.
    pub fn region(mut self, region: MlirRegion) -> MlirOp {
        self.regions.push(region);
        self
    }

    /// Sets the value that it defines.
    pub fn defines(mut self, result: MlirValue) -> MlirOp {
        self.result = Some(result);
        self
    }

    /// Returns an attribute.
    pub fn attribute(&self, name: &str) -> Option<&MlirAttribute> {
        self.attributes.iter().find(|(of, _)| *of == name).map(|(_, value)| value)
    }

    /// Returns an integer attribute.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.attribute(name)? {
            MlirAttribute::Int(value, _) => Some(*value),
            _ => None,
        }
    }

    /// Calls a function with each operation inside.
    pub fn inside<'a>(&'a self, visit: &mut impl FnMut(&'a MlirOp)) {
        for op in self.regions.iter().flat_map(|region| &region.blocks).flat_map(|block| &block.ops) {
            visit(op);
            op.inside(visit);
        }
    }
}

/// The names of sizes and strides: `#dims0`, `#dims1`, …
type DimsNames<'a> = BTreeMap<&'a [(u32, u32)], usize>;

fn name_dims<'a>(op: &'a MlirOp, names: &mut DimsNames<'a>) {
    for (_, value) in &op.attributes {
        if let MlirAttribute::Dims(dims) = value {
            let next = names.len();
            names.entry(dims).or_insert(next);
        }
    }
}

impl MlirModule {
    /// Names the sizes and strides of all descriptors.
    fn dims(&self) -> DimsNames<'_> {
        let mut names = DimsNames::new();
        for op in self.devices.iter().flat_map(|device| &device.ops) {
            name_dims(op, &mut names);
            op.inside(&mut |op| name_dims(op, &mut names));
        }
        names
    }
}

impl fmt::Display for MlirModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.dims();
        let mut ordered: Vec<(&&[(u32, u32)], &usize)> = names.iter().collect();
        ordered.sort_unstable_by_key(|(_, number)| **number);
        for (dims, number) in ordered {
            let dims = dims.iter().map(|(size, stride)| format!("<size = {size}, stride = {stride}>"));
            let dims: Vec<String> = dims.collect();
            writeln!(f, "#dims{number} = #aie<bd_dim_layout_array[{}]>", dims.join(", "))?;
        }
        writeln!(f, "module {{")?;
        for device in &self.devices {
            writeln!(f, "  aie.device({}) @{} {{", device.device, device.symbol)?;
            let printer = Printer { names: &names };
            device.ops.iter().try_for_each(|op| printer.op(f, op, 2))?;
            writeln!(f, "  }}")?;
        }
        writeln!(f, "}}")
    }
}

/// Prints operations with the names of sizes and strides.
struct Printer<'a> {
    names: &'a DimsNames<'a>,
}

impl Printer<'_> {
    fn op(&self, f: &mut fmt::Formatter<'_>, op: &MlirOp, depth: usize) -> fmt::Result {
        let indent = 2 * depth;
        write!(f, "{:indent$}", "")?;
        if let Some(result) = op.result {
            write!(f, "%{} = ", result.number)?;
        }
        write!(f, "\"{}\"({})", op.name, listed(&op.operands, |value| format!("%{}", value.number)))?;
        if !op.successors.is_empty() {
            write!(f, "[{}]", listed(&op.successors, |block| format!("^bb{block}")))?;
        }
        for (index, region) in op.regions.iter().enumerate() {
            f.write_str(if index == 0 { " ({\n" } else { ", {\n" })?;
            self.region(f, region, depth + 1)?;
            write!(f, "{:indent$}}}", "")?;
        }
        if !op.regions.is_empty() {
            f.write_str(")")?;
        }
        if !op.attributes.is_empty() {
            let text = listed(&op.attributes, |(name, value)| format!("{name} = {}", self.attribute(value)));
            write!(f, " {{{text}}}")?;
        }
        let result = op.result.map_or("()".to_owned(), |result| result.of.to_string());
        writeln!(f, " : ({}) -> {result}", listed(&op.operands, |value| value.of.to_string()))
    }

    fn region(&self, f: &mut fmt::Formatter<'_>, region: &MlirRegion, depth: usize) -> fmt::Result {
        let indent = 2 * depth - 1;
        for (index, block) in region.blocks.iter().enumerate() {
            if !block.arguments.is_empty() {
                let arguments = listed(&block.arguments, |value| format!("%{}: {}", value.number, value.of));
                writeln!(f, "{:indent$}^bb{index}({arguments}):", "")?;
            } else if index > 0 {
                writeln!(f, "{:indent$}^bb{index}:", "")?;
            }
            block.ops.iter().try_for_each(|op| self.op(f, op, depth))?;
        }
        Ok(())
    }

    fn attribute(&self, value: &MlirAttribute) -> String {
        match value {
            MlirAttribute::Int(value, of) => format!("{value} : {of}"),
            MlirAttribute::Bool(value) => value.to_string(),
            MlirAttribute::Float(value) => format!("0x{:08X} : f32", value.to_bits()),
            MlirAttribute::Text(text) => format!("\"{text}\""),
            MlirAttribute::Symbol(name) => format!("@{name}"),
            MlirAttribute::Array(values, of) if values.is_empty() => format!("array<{of}>"),
            MlirAttribute::Array(values, of) => format!("array<{of}: {}>", listed(values, i64::to_string)),
            MlirAttribute::Function(types) => format!("({}) -> ()", listed(types, MlirType::to_string)),
            MlirAttribute::Dims(dims) => format!("#dims{}", self.names[dims.as_slice()]),
        }
    }
}

fn listed<T>(items: &[T], text: impl Fn(&T) -> String) -> String {
    items.iter().map(text).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for MlirType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MlirType::Index => f.write_str("index"),
            MlirType::I1 => f.write_str("i1"),
            MlirType::I32 => f.write_str("i32"),
            MlirType::F32 => f.write_str("f32"),
            MlirType::Words(words) => write!(f, "memref<{words}xi32>"),
        }
    }
}
