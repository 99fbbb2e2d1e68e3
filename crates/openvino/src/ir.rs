//! Writes models in the text form that OpenVINO reads: IR of version 11.
//!
//! A layer names its operands by edges, and its constants by their place in one buffer. The reader infers shapes. Names are
//! numbers of ours, so no text from outside stands in the model.

use std::collections::HashMap;
use std::fmt::Write as _;

/// The type of the numbers of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Precision {
    Boolean,
    F16,
    BF16,
    F32,
    I8,
    I32,
    I64,
    U4,
    U8,
}

impl Precision {
    /// The name in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Boolean => "boolean",
            Precision::F16 => "f16",
            Precision::BF16 => "bf16",
            Precision::F32 => "f32",
            Precision::I8 => "i8",
            Precision::I32 => "i32",
            Precision::I64 => "i64",
            Precision::U4 => "u4",
            Precision::U8 => "u8",
        }
    }

    /// The name at ports.
    fn port(self) -> &'static str {
        match self {
            Precision::Boolean => "BOOL",
            Precision::F16 => "FP16",
            Precision::BF16 => "BF16",
            Precision::F32 => "FP32",
            Precision::I8 => "I8",
            Precision::I32 => "I32",
            Precision::I64 => "I64",
            Precision::U4 => "U4",
            Precision::U8 => "U8",
        }
    }
}

/// A result of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Port {
    layer: u32,
    port: u32,
}

/// Numbers in the buffer of weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plane {
    pub precision: Precision,
    pub shape: Vec<usize>,
    /// The first byte in the buffer.
    pub offset: usize,
    pub bytes: usize,
}

/// Small constants, which lie behind the weights in the buffer. Models of one graph share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constants {
    /// The first byte of the constants in the buffer.
    first: usize,
    bytes: Vec<u8>,
    known: HashMap<Vec<u8>, usize>,
}

impl Constants {
    /// The alignment of each constant.
    const ALIGNMENT: usize = 64;

    /// No constants yet, behind `first` bytes of weights.
    pub fn behind(first: usize) -> Constants {
        Constants { first, ..Constants::default() }
    }

    /// The bytes of all constants.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The place of these bytes in the buffer.
    fn place(&mut self, bytes: Vec<u8>) -> usize {
        if let Some(at) = self.known.get(&bytes) {
            return self.first + at;
        }
        let at = self.bytes.len();
        self.bytes.extend(&bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(Constants::ALIGNMENT), 0);
        self.known.insert(bytes, at);
        self.first + at
    }
}

/// A layer of one result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerKind {
    pub name: &'static str,
    pub opset: u8,
}

/// A kind of layer in a set of operations.
pub(crate) const fn layer(name: &'static str, opset: u8) -> LayerKind {
    LayerKind { name, opset }
}

/// A model that is being written.
#[derive(Debug)]
pub(crate) struct ModelWriter<'a> {
    layers: String,
    edges: String,
    next: u32,
    constants: &'a mut Constants,
    /// Constants that the model has already.
    made: HashMap<(usize, Vec<usize>, Precision), Port>,
}

impl<'a> ModelWriter<'a> {
    /// A model without layers.
    pub fn new(constants: &'a mut Constants) -> ModelWriter<'a> {
        ModelWriter { layers: String::new(), edges: String::new(), next: 0, constants, made: HashMap::new() }
    }

    /// The number of the next layer.
    pub fn next_layer(&self) -> u32 {
        self.next
    }

    /// The text of the model.
    pub fn finish(self) -> String {
        let ModelWriter { layers, edges, .. } = self;
        format!(
            "<?xml version=\"1.0\"?>\n<net name=\"girih\" version=\"11\">\n<layers>\n{layers}</layers>\n<edges>\n{edges}</edges>\n</net>\n"
        )
    }

    /// A parameter; `None` is an extent that varies between steps.
    pub fn parameter(&mut self, name: &str, precision: Precision, shape: &[Option<usize>]) -> Port {
        let extents: Vec<String> = shape
            .iter()
            .map(|extent| extent.map_or_else(|| "-1".to_owned(), |extent| extent.to_string()))
            .collect();
        let id = self.id();
        let (extents, kind, port) = (extents.join(","), precision.name(), precision.port());
        self.write(format_args!(
            "<layer id=\"{id}\" name=\"{name}\" type=\"Parameter\" version=\"opset1\"><data shape=\"{extents}\" element_type=\"{kind}\"/>\
             <output><port id=\"0\" precision=\"{port}\" names=\"{name}\"/></output></layer>\n"
        ));
        Port { layer: id, port: 0 }
    }

    /// Numbers of the buffer.
    pub fn plane(&mut self, plane: &Plane) -> Port {
        let key = (plane.offset, plane.shape.clone(), plane.precision);
        if let Some(port) = self.made.get(&key) {
            return *port;
        }
        let extents: Vec<String> = plane.shape.iter().map(ToString::to_string).collect();
        let id = self.id();
        let (extents, kind, port) = (extents.join(", "), plane.precision.name(), plane.precision.port());
        let (offset, bytes) = (plane.offset, plane.bytes);
        self.write(format_args!(
            "<layer id=\"{id}\" name=\"c{id}\" type=\"Const\" version=\"opset1\"><data element_type=\"{kind}\" shape=\"{extents}\" \
             offset=\"{offset}\" size=\"{bytes}\"/><output><port id=\"0\" precision=\"{port}\"/></output></layer>\n"
        ));
        let made = Port { layer: id, port: 0 };
        self.made.insert(key, made);
        made
    }

    /// A constant of floats.
    pub fn floats(&mut self, shape: &[usize], numbers: &[f32]) -> Port {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.constant(Precision::F32, shape, bytes)
    }

    /// One float.
    pub fn float(&mut self, number: f32) -> Port {
        self.floats(&[], &[number])
    }

    /// A list of integers.
    pub fn integers(&mut self, numbers: &[i64]) -> Port {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.constant(Precision::I64, &[numbers.len()], bytes)
    }

    /// One integer.
    pub fn integer(&mut self, number: i64) -> Port {
        self.constant(Precision::I64, &[], number.to_le_bytes().to_vec())
    }

    /// One number of four bits, without a sign.
    pub fn four_bits(&mut self, number: u8) -> Port {
        self.constant(Precision::U4, &[1], vec![number])
    }

    fn constant(&mut self, precision: Precision, shape: &[usize], bytes: Vec<u8>) -> Port {
        let count = bytes.len();
        let offset = self.constants.place(bytes);
        self.plane(&Plane { precision, shape: shape.to_vec(), offset, bytes: count })
    }

    /// A layer of one result, with attributes such as `axis="1"`.
    pub fn layer(&mut self, kind: LayerKind, attributes: &str, inputs: &[Port], result: Precision) -> Port {
        self.layers(kind, attributes, inputs, &[result])[0]
    }

    /// A layer of several results.
    pub fn layers(
        &mut self,
        kind: LayerKind,
        attributes: &str,
        inputs: &[Port],
        results: &[Precision],
    ) -> Vec<Port> {
        let id = self.id();
        let LayerKind { name, opset } = kind;
        self.write(format_args!(
            "<layer id=\"{id}\" name=\"n{id}\" type=\"{name}\" version=\"opset{opset}\">"
        ));
        if !attributes.is_empty() {
            self.write(format_args!("<data {attributes}/>"));
        }
        self.inputs(id, inputs);
        self.write(format_args!("<output>"));
        let first = inputs.len() as u32;
        let ports: Vec<Port> = (first..).take(results.len()).map(|port| Port { layer: id, port }).collect();
        for (Port { port, .. }, result) in ports.iter().zip(results) {
            self.write(format_args!("<port id=\"{port}\" precision=\"{}\"/>", result.port()));
        }
        self.write(format_args!("</output></layer>\n"));
        ports
    }

    /// Makes a port a result of the model under a name.
    pub fn result(&mut self, name: &str, from: Port) {
        let id = self.id();
        self.write(format_args!(
            "<layer id=\"{id}\" name=\"{name}/out\" type=\"Result\" version=\"opset1\" output_names=\"{name}\">"
        ));
        self.inputs(id, &[from]);
        self.write(format_args!("</layer>\n"));
    }

    fn inputs(&mut self, id: u32, inputs: &[Port]) {
        if inputs.is_empty() {
            return;
        }
        self.write(format_args!("<input>"));
        for (port, from) in inputs.iter().enumerate() {
            self.write(format_args!("<port id=\"{port}\"/>"));
            let edge = writeln!(
                self.edges,
                "<edge from-layer=\"{}\" from-port=\"{}\" to-layer=\"{id}\" to-port=\"{port}\"/>",
                from.layer, from.port
            );
            edge.expect("a string takes any text");
        }
        self.write(format_args!("</input>"));
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.layers.write_fmt(text).expect("a string takes any text");
    }

    fn id(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }
}
