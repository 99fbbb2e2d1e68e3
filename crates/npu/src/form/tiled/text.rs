//! The text of tiled programs.

use std::fmt;
use std::str::FromStr;

use girih_tensor::{Error, Result};

use super::{Flow, Herd, Item, L2Staging, Local, Share, Stream, Sweep, TiledLaunch, TiledOperand};
use crate::form::schedule::text::{Dims, pair};

impl fmt::Display for Herd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.columns, self.rows)
    }
}

impl fmt::Display for TiledLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cascade = if self.cascade { " cascade" } else { "" };
        let flat = if self.flat { " flat" } else { "" };
        write!(f, "launch {} herd {}{flat}{cascade}", self.name, self.herd)?;
        self.resident.iter().try_for_each(|origin| write!(f, " resident {origin}"))?;
        writeln!(f)?;
        self.streams.iter().try_for_each(|stream| writeln!(f, "  {stream}"))?;
        self.sweeps.iter().try_for_each(|sweep| writeln!(f, "  sweep {sweep}"))?;
        for Local { name, bytes } in &self.locals {
            writeln!(f, "  local {name} {bytes}")?;
        }
        writeln!(f, "  body {{")?;
        self.body.iter().try_for_each(|item| print_item(item, 2, f))?;
        writeln!(f, "  }}")
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stream { name, argument, level, depth, base_bytes, column_bytes, row_bytes, .. } = self;
        let flow = if self.flow == Flow::In { "in" } else { "out" };
        write!(f, "stream {name} {flow} a{argument} share {} level {level} depth {depth}", self.share)?;
        write!(f, " base {base_bytes} column {column_bytes} row {row_bytes} dims {}", Dims(&self.dims))?;
        if let Some(host) = &self.ahead_of {
            write!(f, " ahead {host}")?;
        }
        let Some(staging) = &self.l2 else { return Ok(()) };
        let L2Staging { depth, slices, slice_words, passes, into, dims } = staging;
        write!(f, " through {depth} slices {slices} {slice_words} dims {}", Dims(dims))?;
        if staging.repeats() {
            write!(f, " passes {passes}")?;
        }
        if into.is_empty() { Ok(()) } else { write!(f, " into {}", Dims(into)) }
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sweep { times, first, step, count } = self;
        write!(f, "times {times} first {first} step {step} count {count}")
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Share::Own => "own",
            Share::Column => "column",
            Share::Row => "row",
            Share::All => "all",
            Share::Bottom => "bottom",
            Share::Top => "top",
        })
    }
}

fn print_item(item: &Item, depth: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{:1$}", "", 2 * depth)?;
    match item {
        Item::Loop { count, body } => {
            writeln!(f, "loop {count} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::On { first, last, body } => {
            writeln!(f, "on {first} {last} {{")?;
            body.iter().try_for_each(|inner| print_item(inner, depth + 1, f))?;
            writeln!(f, "{:1$}}}", "", 2 * depth)
        }
        Item::Call { entry, operands, parameters } => {
            write!(f, "call {entry}")?;
            operands.iter().try_for_each(|TiledOperand { name, offset }| write!(f, " {name}@{offset}"))?;
            if !parameters.is_empty() {
                f.write_str(" :")?;
            }
            parameters.iter().try_for_each(|parameter| write!(f, " {parameter}"))?;
            writeln!(f)
        }
    }
}

impl FromStr for Herd {
    type Err = Error;

    fn from_str(text: &str) -> Result<Herd> {
        match pair(text, 'x', "a herd")? {
            (columns, rows) if columns > 0 && rows > 0 => Ok(Herd { columns, rows }),
            _ => Err(Error::new(format!("'{text}' is not a herd"))),
        }
    }
}
