//! The text form of a graph: `parse(print(g)) == g` for every graph without
//! faults.
//!
//! ```text
//! graph rows 64 sequences 1 context 512 output_rows 1 -> logits
//! group full span full
//! group carried carried
//! input tokens: [rows 64] i32
//! weight embed.table: [512, 64] q8_0
//! state layers.0.keys: [context 512, 4, 8] f16 in full
//! state layers.1.carried: [2, 64] f32 in carried
//! embed: [rows 64, 64] = embed tokens, embed.table
//! layers.0.norm: [rows 64, 64] = norm(epsilon=1e-5) embed, layers.0.norm.weight
//! layers.0.keys = write layers.0.k
//! output logits: [output_rows 1, 512] = linear head, embed.table
//! ```

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use girih_tensor::{DType, Error, Shape};

use crate::graph::{Graph, Key, Node, OutputKind, StateGroup};
use crate::ops::Op;
use crate::state_kind::StateKind;
use crate::value::{Extent, GroupId, Role, Value, ValueId};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graph {}", self.key)?;
        for group in &self.groups {
            writeln!(f, "group {} {}", group.name, group.kind)?;
        }
        let mut declared = 0;
        for node in &self.nodes {
            let written = node.output.0 as usize;
            let upto = if node.op == Op::Write { written + 1 } else { written };
            declare(self, &mut declared, upto, f)?;
            match self.values.get(written) {
                Some(value) if node.op != Op::Write => {
                    declared = declared.max(written + 1);
                    let prefix = if value.role == Role::Output { "output " } else { "" };
                    write!(f, "{prefix}{}: {} = {}", value.name, extents(value), node.op)?;
                }
                _ => write!(f, "{} = {}", name(self, node.output), node.op)?,
            }
            for (i, input) in node.inputs.iter().enumerate() {
                write!(f, "{} {}", if i == 0 { "" } else { "," }, name(self, *input))?;
            }
            writeln!(f)?;
        }
        declare(self, &mut declared, self.values.len(), f)
    }
}

/// The name of an operand; `?` for an id outside the graph, so that faulty graphs can be printed.
fn name(graph: &Graph, id: ValueId) -> &str {
    graph.values.get(id.0 as usize).map_or("?", |value| &value.name)
}

/// Prints the declarations of all values from `*from` up to `upto`.
fn declare(graph: &Graph, from: &mut usize, upto: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    while *from < upto.min(graph.values.len()) {
        let value = &graph.values[*from];
        let (name, shape, dtype) = (&value.name, extents(value), value.dtype);
        match value.role {
            Role::Input => writeln!(f, "input {name}: {shape} {dtype}")?,
            Role::Weight => writeln!(f, "weight {name}: {shape} {dtype}")?,
            Role::State(group) => {
                let group = graph.groups.get(group.0 as usize).map_or("?", |group| &group.name);
                writeln!(f, "state {name}: {shape} {dtype} in {group}")?;
            }
            Role::Scratch | Role::Output => writeln!(f, "unwritten {name}: {shape}")?,
        }
        *from += 1;
    }
    Ok(())
}

fn extents(value: &Value) -> String {
    let word = match value.outermost {
        Extent::Fixed => "",
        Extent::Rows => "rows ",
        Extent::OutputRows => "output_rows ",
        Extent::Sequences => "sequences ",
        Extent::Context => "context ",
    };
    value.shape.to_string().replacen('[', &format!("[{word}"), 1)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { rows, sequences, context, output_rows, output } = self;
        write!(f, "rows {rows} sequences {sequences} context {context} output_rows {output_rows} -> {output}")
    }
}

impl fmt::Display for OutputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OutputKind::Logits => "logits",
            OutputKind::Hidden => "hidden",
            OutputKind::Pooled => "pooled",
        })
    }
}

impl FromStr for Graph {
    type Err = Error;

    fn from_str(text: &str) -> Result<Graph, Error> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let (index, first) =
            lines.next().ok_or_else(|| Error::new("line 1: the text of a graph is empty"))?;
        let key = first.trim().strip_prefix("graph ").and_then(parse_key).ok_or_else(|| {
            let form = "graph rows … sequences … context … output_rows … -> output";
            Error::new(format!("line {}: a graph begins with '{form}'", index + 1))
        })?;
        let mut parser = Parser {
            graph: Graph { key, groups: Vec::new(), values: Vec::new(), nodes: Vec::new() },
            names: HashMap::new(),
            groups: HashMap::new(),
        };
        for (index, line) in lines {
            parser.line(line.trim()).map_err(|error| Error::new(format!("line {}: {error}", index + 1)))?;
        }
        Ok(parser.graph)
    }
}

fn parse_key(text: &str) -> Option<Key> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["rows", rows, "sequences", sequences, "context", context, "output_rows", output_rows, "->", output] =
        words[..]
    else {
        return None;
    };
    let output = match output {
        "logits" => OutputKind::Logits,
        "hidden" => OutputKind::Hidden,
        "pooled" => OutputKind::Pooled,
        _ => return None,
    };
    Some(Key {
        rows: rows.parse().ok()?,
        sequences: sequences.parse().ok()?,
        context: context.parse().ok()?,
        output_rows: output_rows.parse().ok()?,
        output,
    })
}

struct Parser {
    graph: Graph,
    names: HashMap<String, ValueId>,
    groups: HashMap<String, GroupId>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), Error> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            // State may have the name of a keyword: `input = write x`.
            _ if rest.starts_with("= ") => self.node(line, Role::Scratch),
            "group" => self.group(rest),
            "input" => self.declare(rest, Role::Input),
            "weight" => self.declare(rest, Role::Weight),
            "state" => {
                let (rest, group) = rest.rsplit_once(" in ").ok_or_else(|| {
                    Error::new(format!("'{rest}' is not a state 'name: [extents] dtype in group'"))
                })?;
                let group = self.groups.get(group).copied();
                let group = group.ok_or_else(|| Error::new("its group is not declared above"))?;
                self.declare(rest, Role::State(group))
            }
            "output" => self.node(rest, Role::Output),
            _ => self.node(line, Role::Scratch),
        }
    }

    /// `name span span`, or `name carried`.
    fn group(&mut self, text: &str) -> Result<(), Error> {
        let (name, kind) = text.split_once(' ').unwrap_or((text, ""));
        let kind = StateKind::parse(kind)?;
        let id = GroupId(next_index(self.graph.groups.len())?);
        if self.groups.insert(name.to_owned(), id).is_some() {
            return Err(Error::new(format!("the group '{name}' is declared twice")));
        }
        self.graph.groups.push(StateGroup { name: name.to_owned(), kind });
        Ok(())
    }

    /// `name: [extents] dtype`.
    fn declare(&mut self, text: &str, role: Role) -> Result<(), Error> {
        let malformed = || Error::new(format!("'{text}' is not a declaration 'name: [extents] dtype'"));
        let (name, rest) = text.split_once(": [").ok_or_else(malformed)?;
        let (shape, dtype) = rest.split_once("] ").ok_or_else(malformed)?;
        let (shape, outermost) = parse_shape(shape)?;
        let dtype = dtype.parse::<DType>()?;
        self.add(Value { name: name.to_owned(), shape, dtype, role, outermost })?;
        Ok(())
    }

    /// `name: [extents] = op(constants) operands`, or `state = write x`.
    fn node(&mut self, text: &str, role: Role) -> Result<(), Error> {
        let malformed = || Error::new(format!("'{text}' is not a node 'name: [extents] = op operands'"));
        let (target, call) = text.split_once(" = ").ok_or_else(malformed)?;
        let (op, operands) = match call.split_once('(') {
            Some((name, rest)) => {
                let (constants, operands) = rest.split_once(')').ok_or_else(malformed)?;
                (Op::parse(name, constants)?, operands)
            }
            None => {
                let (name, operands) = call.split_once(' ').ok_or_else(malformed)?;
                (Op::parse(name, "")?, operands)
            }
        };
        let inputs = operands.split(',').map(|name| self.known(name.trim())).collect::<Result<_, _>>()?;
        let output = match target.split_once(": [") {
            None if role == Role::Scratch => self.known(target)?,
            None => return Err(malformed()),
            Some((name, shape)) => {
                let (shape, outermost) = parse_shape(shape.strip_suffix(']').ok_or_else(malformed)?)?;
                self.add(Value { name: name.to_owned(), shape, dtype: DType::F32, role, outermost })?
            }
        };
        self.graph.nodes.push(Node { op, inputs, output });
        Ok(())
    }

    fn known(&self, name: &str) -> Result<ValueId, Error> {
        self.names.get(name).copied().ok_or_else(|| Error::new(format!("'{name}' is not declared above")))
    }

    fn add(&mut self, value: Value) -> Result<ValueId, Error> {
        let id = ValueId(next_index(self.graph.values.len())?);
        if self.names.insert(value.name.clone(), id).is_some() {
            return Err(Error::new(format!("'{}' is declared twice", value.name)));
        }
        self.graph.values.push(value);
        Ok(id)
    }
}

/// The index of the next value or group, if it fits its type.
fn next_index(count: usize) -> Result<u32, Error> {
    u32::try_from(count).map_err(|_| Error::new("the graph has too many values or groups"))
}

/// Parses what `extents` prints, without its brackets: `rows 64, 8`.
fn parse_shape(text: &str) -> Result<(Shape, Extent), Error> {
    let words = [
        ("rows ", Extent::Rows),
        ("output_rows ", Extent::OutputRows),
        ("sequences ", Extent::Sequences),
        ("context ", Extent::Context),
    ];
    let (text, outermost) = words
        .iter()
        .find_map(|(word, extent)| text.strip_prefix(word).map(|rest| (rest, *extent)))
        .unwrap_or((text, Extent::Fixed));
    let extents: Result<Vec<usize>, _> = text.split(',').map(|extent| extent.trim().parse()).collect();
    let extents = extents.map_err(|_| Error::new(format!("'[{text}]' is not a list of extents")))?;
    Ok((Shape::new(&extents)?, outermost))
}
